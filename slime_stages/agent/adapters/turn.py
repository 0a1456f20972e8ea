"""One turn as all protocols mean it: what is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_stages.agent.parsing import ToolCall

Message = dict[str, Any]
Tool = dict[str, Any]
IMAGE_OMITTED = "[image omitted]"
ROUTED_BY = ("role", "content", "tool_calls")
"""What tells two messages apart; clients leave reasoning out of the history as they like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, translated to what chat templates and engines take."""

    messages: list[Message]
    """The history; arguments of tool calls as objects, no ids."""
    tools: list[Tool]
    """In OpenAI's nested form."""
    model: str
    """As the client calls it."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: Sequence[str] = ()
    forced_tools: Sequence[Tool] = ()
    """One of these has to be called; they say `strict` where the arguments are held to their schema."""
    is_single_call: bool = False
    """Where one has to be called, no second one is."""
    json_schema: Mapping[str, Any] | None = None
    """Of the text, which is JSON then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What an answer is held to; by default to nothing."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters."""
    is_thinking: bool = False
    """The model thinks first: an engine that knows its reasoning parser leaves that free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A tool call with the id by which the client answers it."""

    id: str
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, before a protocol puts it in its form."""

    id: str
    """Hexadecimal; protocols put their prefix before it."""
    created_at: int
    """Unix seconds."""
    model: str
    text: str
    reasoning: str
    tool_calls: tuple[WireCall, ...]
    is_cut: bool
    """It stopped at a limit of tokens."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of the prompt, those that the engine did not compute again."""

    @property
    def message(self) -> Message:
        """As the history repeats it."""
        return assistant_message(self.text, self.reasoning, [item.call for item in self.tool_calls])


def assistant_message(text: str, reasoning: str, calls: Sequence[ToolCall]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return message


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Tool:
    schema = dict(parameters) if parameters else {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": schema}}


def held_to_schema(tool: Tool, *, is_strict: bool) -> Tool:
    """A tool that has to be called; else the arguments are any object."""
    return {**tool, "function": {**tool["function"], "strict": is_strict}}


def routed_by(message: Message) -> Message:
    """The part of a message by which a history finds its place."""
    return {key: message[key] for key in ROUTED_BY if key in message}
