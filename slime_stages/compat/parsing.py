"""Parsing of answers under slime's names: calls are dicts with `name` and `input`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from slime_stages.agent.parsing import AnswerParser
from slime_stages.agent.parsing.xml_calls import take_xml_calls

Call = dict[str, Any]


@dataclass(frozen=True)
class ParsedModelOutput:
    """The parts of an answer."""

    reasoning: str
    text: str
    tool_uses: list[Call]
    ill_formed: bool = False


def parse_model_output(
    raw_output: str,
    *,
    tools_schema: Sequence[dict[str, Any]] | None,
    tool_parser_name: str | None,
    reasoning_parser_name: str | None,
) -> ParsedModelOutput:
    parsed = _parser(tool_parser_name, reasoning_parser_name).parse(raw_output, tools_schema or ())
    calls = [_call(call.name, call.arguments) for call in parsed.tool_calls]
    return ParsedModelOutput(parsed.reasoning, parsed.text, calls, parsed.ill_formed)


def parse_tool_uses(
    body_text: str, tools_schema: Sequence[dict[str, Any]] | None, tool_parser_name: str | None
) -> tuple[str, list[Call], bool]:
    """The text around the calls, those, and whether one cannot be read."""
    parsed = parse_model_output(
        body_text, tools_schema=tools_schema, tool_parser_name=tool_parser_name, reasoning_parser_name=None
    )
    return parsed.text, parsed.tool_uses, parsed.ill_formed


def parse_xml_tool_uses(body_text: str, tools_schema: Sequence[dict[str, Any]]) -> tuple[str, list[Call]]:
    """The same, for calls that are written as XML."""
    text, calls = take_xml_calls(body_text, tools_schema)
    return text, [_call(name, arguments) for name, arguments in calls]


def _call(name: str, arguments: dict[str, Any]) -> Call:
    return {"name": name, "input": arguments}


_parser = cache(AnswerParser)
