"""From the text of an answer to its parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from slime_stages.agent.parsing import constraints, sglang_parsers
from slime_stages.agent.parsing.xml_calls import take_xml_calls

logger = logging.getLogger(__name__)
RAW_ARGUMENTS = "_raw_arguments"
"""The key of arguments that are no JSON object, as they were written."""
END_OF_REASONING = "</think>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The parts of an answer."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    ill_formed: bool
    """It holds a call that cannot be read."""


class AnswerParser:
    """Parses answers with SGLang's parsers of these names; UsageError for a name that SGLang does not know."""

    def __init__(self, tool_parser: str | None = None, reasoning_parser: str | None = None) -> None:
        sglang_parsers.check_names(tool_parser, reasoning_parser)
        self.tool_parser = tool_parser
        self.reasoning_parser = reasoning_parser

    def parse(self, text: str, tools: Sequence[dict[str, Any]] = (), *, is_forced: bool = False) -> ParsedAnswer:
        """The parts of a text; `tools` are those that the model was offered, in OpenAI's form, or had to call."""
        reasoning, text = self._without_reasoning(text)
        calls: list[ToolCall] = []
        ill_formed = False
        if is_forced and constraints.writes_array(self.tool_parser, tools):
            text, calls, ill_formed = _without_array(text)
        elif tools and self.tool_parser is not None:
            text, calls, ill_formed = self._without_calls(text, tools)
        if tools and not calls:
            text, found = take_xml_calls(text, tools)
            calls = [ToolCall(name, arguments) for name, arguments in found]
            ill_formed = ill_formed and not calls
        return ParsedAnswer(text.strip(), reasoning.strip(), tuple(calls), ill_formed)

    def _without_reasoning(self, text: str) -> tuple[str, str]:
        if self.reasoning_parser is None:
            return "", text
        is_parsed_on = self.tool_parser is not None
        reasoning, rest = sglang_parsers.split_reasoning(self.reasoning_parser, text, is_parsed_on=is_parsed_on)
        if not reasoning and END_OF_REASONING in rest:
            reasoning, _, rest = rest.partition(END_OF_REASONING)
        return reasoning, rest

    def _without_calls(self, text: str, tools: Sequence[dict[str, Any]]) -> tuple[str, list[ToolCall], bool]:
        assert self.tool_parser is not None
        try:
            rest, found, begun = sglang_parsers.take_calls(self.tool_parser, text, tools)
        except Exception:  # detectors raise whatever a model's text makes them raise
            logger.exception("SGLang's tool parser %s fails on a text of %d characters", self.tool_parser, len(text))
            return text, [], True
        calls = [ToolCall(name, read_arguments(written)) for name, written in found]
        ill_formed = begun > len(calls) or any(RAW_ARGUMENTS in call.arguments for call in calls)
        return rest if calls else text, calls, ill_formed  # parsers cut out what they cannot read


def _without_array(text: str) -> tuple[str, list[ToolCall], bool]:
    """Calls that stand in a JSON array, which may have been cut off."""
    try:
        return "", [ToolCall(call["name"], dict(call["parameters"])) for call in orjson.loads(text)], False
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return text, [], True


def write_arguments(arguments: dict[str, Any]) -> str:
    """The inverse of `read_arguments`."""
    if arguments.keys() == {RAW_ARGUMENTS} and isinstance(arguments[RAW_ARGUMENTS], str):
        return str(arguments[RAW_ARGUMENTS])
    return orjson.dumps(arguments).decode()


def read_arguments(written: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text, or that text itself under a key of its own."""
    try:
        arguments = orjson.loads(written or "{}")
    except orjson.JSONDecodeError:
        return {RAW_ARGUMENTS: written}
    return arguments if isinstance(arguments, dict) else {RAW_ARGUMENTS: written}
