"""Grammars that hold an answer to a form: the engine's sampling parameters for them, as SGLang's own server makes them.

Calls are held to the format of the model's tool parser. Where SGLang has no grammar for that, they are a JSON array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

GRAMMARS = ("json_schema", "structural_tag", "regex", "ebnf")
"""Sampling parameters of which an engine takes one."""
ANY_OBJECT = {"type": "object"}
THINK_MARKS = ("<think>", "</think>")


def schema_constraint(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The answer is JSON of a schema."""
    return {"json_schema": json.dumps(schema)}


def call_constraint(
    tool_parser: str | None, tools: Sequence[dict[str, Any]], *, is_single: bool, is_thinking: bool
) -> dict[str, Any]:
    """The answer is a call of one of `tools`, or several. ValueError if the format cannot be held to."""
    kind, value = _found(tool_parser, tools, is_single=is_single, is_thinking=is_thinking)
    if kind == "full_assistant_ebnf":
        return {"ebnf": value, "ebnf_full_assistant": True}
    return {kind: json.dumps(value)}


def call_or_schema_constraint(
    tool_parser: str | None, tools: Sequence[dict[str, Any]], schema: Mapping[str, Any], *, is_single: bool
) -> dict[str, Any]:
    """The answer is calls, or JSON of a schema. ValueError if one cannot be told from the other."""
    kind, value = _found(tool_parser, tools, is_single=is_single, is_thinking=False)
    if kind != "structural_tag":
        raise ValueError(
            f"the tool parser {tool_parser} has no form of calls that stands beside JSON: "
            "ask for JSON without tools, or with tool_choice `none`"
        )
    either = [{"type": "json_schema", "json_schema": schema}, value["format"]]
    return {kind: json.dumps({**value, "format": {"type": "or", "elements": either}})}


def writes_array(tool_parser: str | None, tools: Sequence[dict[str, Any]]) -> bool:
    """Whether calls that are asked for come as a JSON array, as the format of the parser has no grammar."""
    return tool_parser is None or not _parser(tool_parser, tools).owns_tool_format()


def _found(
    tool_parser: str | None, tools: Sequence[dict[str, Any]], *, is_single: bool, is_thinking: bool
) -> tuple[str, Any]:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.utils import get_json_schema_constraint

    found = None
    if tool_parser is not None:
        parser = _parser(tool_parser, tools)
        found = parser.get_structure_constraint(
            "required", parallel_tool_calls=not is_single, thinking_mode=is_thinking and tool_parser == "glm47"
        )
        if found is None and parser.detector.parses_required_natively():
            raise ValueError(f"the tool parser {tool_parser} has no grammar: only tool_choice `auto` or `none`")
    if found is None:
        offered = [Tool(**tool) for tool in tools]
        found = "json_schema", get_json_schema_constraint(offered, "required", parallel_tool_calls=not is_single)
    kind, value = found
    return kind, _structural_tag(value, is_single=is_single) if kind == "structural_tag" else value


def _parser(name: str, tools: Sequence[dict[str, Any]]) -> Any:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    return FunctionCallParser([Tool(**tool) for tool in tools], name, tool_choice="required")


def _structural_tag(tag: Any, *, is_single: bool) -> dict[str, Any]:
    """A tag as a table; one of the older form in the newer, which alone can end after the first call."""
    from sglang.srt.function_call.utils import strip_structural_tag_excludes

    strip_structural_tag_excludes(tag, THINK_MARKS)  # a model may close its empty thinking before it calls
    table: dict[str, Any] = tag.model_dump(by_alias=True)
    if "structures" not in table:
        return table
    calls = [
        {
            "type": "tag",
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": structure["schema"] or ANY_OBJECT},
            "end": structure["end"],
        }
        for structure in table["structures"]
    ]
    triggered = {"type": "triggered_tags", "triggers": table["triggers"], "tags": calls}
    return {
        "type": "structural_tag",
        "format": {**triggered, "at_least_one": True, "stop_after_first": is_single},
    }
