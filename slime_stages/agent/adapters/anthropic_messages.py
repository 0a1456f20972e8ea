"""Anthropic's histories as chat messages.

Each block of a user message becomes a message of its own; tool results are messages of the role `tool`. System messages
within the history become reminders in a message of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime_stages.agent.adapters.anthropic_requests import (
    CountBody,
    Media,
    MessageIn,
    MessagesBody,
    RedactedThinking,
    SearchResult,
    Text,
    Thinking,
    ToolReference,
    ToolResult,
    ToolUse,
)
from slime_stages.agent.adapters.errors import invalid, without_images
from slime_stages.agent.adapters.turn import (
    IMAGE_OMITTED,
    Message,
    Tool,
    assistant_message,
    function_tool,
    held_to_schema,
)
from slime_stages.agent.parsing import ToolCall

REMINDER = "<system-reminder>\n{}\n</system-reminder>\n"


def chat_messages(body: CountBody, *, omit_images: bool) -> list[Message]:
    """The history for a chat template. RequestError for an image, unless images are omitted."""
    top = [Text(text=body.system)] if isinstance(body.system, str) else body.system or []
    leads = body.messages[0].role == "system"
    leading = body.messages[0].blocks if leads else []
    system = "\n".join(_text(block, omit_images) for block in [*top, *leading])
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for role, blocks in _folded(body.messages[1:] if leads else body.messages):
        if role == "assistant":
            messages.append(_assistant(blocks))
        else:
            messages.extend(_user(block, omit_images) for block in blocks)
    if not any(message["role"] != "system" for message in messages):
        raise invalid("messages: there is none of the user's")
    return messages


def chat_tools(body: CountBody) -> list[Tool]:
    """Tools that the model is shown."""
    if body.tool_choice is not None and body.tool_choice.type == "none":
        return []
    return [
        function_tool(tool.name, tool.description, tool.input_schema or tool.parameters) for tool in body.tools or []
    ]


def forced_tools(body: CountBody) -> list[Tool]:
    """Those of which one has to be called, [] if none has. RequestError for a tool that there is not."""
    choice = body.tool_choice
    if choice is None or choice.type not in ("any", "tool"):
        return []
    tools = zip(chat_tools(body), body.tools or [], strict=True)
    forced = [
        held_to_schema(tool, is_strict=bool(given.strict))
        for tool, given in tools
        if choice.type == "any" or given.name == choice.name
    ]
    if not forced:
        raise invalid(f"tool_choice: a call of {choice.name or 'a tool'} is required, and it is not in tools")
    return forced


def json_schema(body: MessagesBody, forced: Sequence[Tool]) -> Mapping[str, Any] | None:
    """The schema that the text has to keep; None where it is free. RequestError where a call is required."""
    form = (body.output_config.format if body.output_config else None) or body.output_format
    if form is not None and forced:
        raise invalid("output_config.format: a tool has to be called, so the answer cannot be JSON")
    return form.schema_ if form is not None else None


def _folded(messages: Sequence[MessageIn]) -> list[tuple[str, list[Any]]]:
    """Roles and blocks, with system messages in the user message before, else after, else in one of their own."""
    folded: list[tuple[str, list[Any]]] = []
    waiting: list[Any] = []
    for message in messages:
        if message.role != "system":
            early = waiting if message.role == "user" else []
            folded.append((message.role, [*early, *message.blocks]))
            waiting = [] if early else waiting
            continue
        text = "\n".join(_text(block, omit_images=False) for block in message.blocks)
        before = next((blocks for role, blocks in reversed(folded) if role == "user"), waiting)
        before.append(Text(text=REMINDER.format(text)))
    return [*folded, *([("user", waiting)] if waiting else [])]


def _user(block: Any, omit_images: bool) -> Message:
    if isinstance(block, ToolUse | Thinking | RedactedThinking):
        raise invalid(f"messages: a message of the user has a block of type {block.type}")
    return {"role": "tool" if isinstance(block, ToolResult) else "user", "content": _text(block, omit_images)}


def _assistant(blocks: Sequence[Any]) -> Message:
    text = "".join(block.text for block in blocks if isinstance(block, Text))
    reasoning = "".join(block.thinking for block in blocks if isinstance(block, Thinking))
    calls = [ToolCall(block.name, block.input) for block in blocks if isinstance(block, ToolUse)]
    return assistant_message(text, reasoning, calls)


def _text(block: Any, omit_images: bool) -> str:
    """A block as the model reads it."""
    match block:
        case Text(text=text):
            return text
        case ToolResult(content=content):
            parts = [content or ""] if not isinstance(content, list) else [_text(item, omit_images) for item in content]
            return "\n".join(parts)
        case SearchResult(title=title, content=content):
            return "\n".join([title, *(item.text for item in content)])
        case ToolReference(tool_name=name):
            return name
        case Media(type="document", source={"type": "text", "data": str(data)}):
            return data
        case Media(type=kind) if not omit_images:
            raise without_images(f"{kind}s")
    return IMAGE_OMITTED
