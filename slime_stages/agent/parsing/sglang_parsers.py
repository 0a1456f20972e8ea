"""SGLang's own parsers for tool calls and reasoning, as the server with the same flags would use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_stages.errors import UsageError


def check_names(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """UsageError for a parser that the installed SGLang does not have."""
    if tool_parser is not None:
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        _check(tool_parser, FunctionCallParser.ToolCallParserEnum, "--sglang-tool-call-parser")
    if reasoning_parser is not None:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        _check(reasoning_parser, ReasoningParser.DetectorMap, "--sglang-reasoning-parser")


def split_reasoning(name: str, text: str, *, is_parsed_on: bool) -> tuple[str, str]:
    """The reasoning, and the rest; `is_parsed_on`: the rest goes to a tool parser."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(model_type=name, stream_reasoning=False, tool_call_parser_active=is_parsed_on)
    reasoning, rest = parser.parse_non_stream(text)
    return reasoning or "", rest or ""


def take_calls(name: str, text: str, tools: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[str, str]], int]:
    """The text around the calls, the calls by name and JSON text, and how many the text begins, as far as it shows."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    parser = FunctionCallParser([Tool(**tool) for tool in tools], name)
    if not parser.has_tool_call(text):
        return text, [], 0
    rest, calls = parser.parse_non_stream(text)
    mark = parser.detector.bot_token.strip()
    return rest, [(call.name or "", call.parameters) for call in calls], text.count(mark) if mark else 1


def _check(name: str, known: dict[str, Any], flag: str) -> None:
    if name not in known:
        raise UsageError(f"SGLang has no parser {name}", hint=f"{flag} is one of {', '.join(sorted(known))}")
