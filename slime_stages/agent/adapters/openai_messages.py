"""OpenAI's histories as chat messages: arguments of calls as objects, no ids, the items of an answer put together."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from slime_stages.agent.adapters.errors import invalid, without_images
from slime_stages.agent.adapters.openai_requests import (
    ChatMessage,
    Content,
    FunctionCall,
    FunctionCallItem,
    FunctionOutputItem,
    MediaPart,
    MessageItem,
    ReasoningItem,
    RefusalPart,
)
from slime_stages.agent.adapters.turn import IMAGE_OMITTED, Message, assistant_message
from slime_stages.agent.parsing import ToolCall, read_arguments

ROLES = {"developer": "system", "function": "tool"}
"""Names that chat templates do not know."""


def chat_message(message: ChatMessage, *, omit_images: bool) -> Message:
    """RequestError for an image, unless images are omitted."""
    if message.role == "assistant":
        calls = [_call(item.function) for item in message.tool_calls or []]
        return assistant_message(content_text(message.content, "", omit_images), message.reasoning_content or "", calls)
    role = ROLES.get(message.role, message.role)
    return {"role": role, "content": content_text(message.content, "\n", omit_images)}


def item_messages(items: Sequence[Any], *, omit_images: bool) -> list[Message]:
    """Messages of the items of a response's input; the items of one answer are one message."""
    answers = _Answers()
    for item in items:
        match item:
            case ReasoningItem():
                answers.end_if(bool(answers.text or answers.calls))
                answers.reasoning += _reasoning(item)
            case FunctionCallItem():
                answers.calls.append(_call(item))
            case MessageItem(role="assistant"):
                answers.end_if(bool(answers.calls))
                answers.text += content_text(item.content, "", omit_images)
            case _:
                answers.end_if(True)
                answers.messages.append(_other(item, omit_images))
    answers.end_if(True)
    return answers.messages


def content_text(content: Content, between: str, omit_images: bool) -> str:
    if not isinstance(content, list):
        return content or ""
    return between.join(_part(part, omit_images) for part in content)


def opaque(reasoning: str) -> str:
    """Reasoning for clients that keep the whole state themselves, as they are used to get it."""
    return base64.b64encode(reasoning.encode()).decode()


class _Answers:
    """Collects the items of one answer after the other."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._begin()

    def end_if(self, is_ended: bool) -> None:
        """Make a message of what was collected, if anything was, and begin anew."""
        if is_ended and (self.text or self.reasoning or self.calls):
            self.messages.append(assistant_message(self.text, self.reasoning, self.calls))
            self._begin()

    def _begin(self) -> None:
        self.text = self.reasoning = ""
        self.calls: list[ToolCall] = []


def _other(item: Any, omit_images: bool) -> Message:
    if isinstance(item, FunctionOutputItem):
        return {"role": "tool", "content": content_text(item.output, "\n", omit_images)}
    assert isinstance(item, MessageItem)
    return {"role": ROLES.get(item.role, item.role), "content": content_text(item.content, "\n", omit_images)}


def _reasoning(item: ReasoningItem) -> str:
    if item.content is not None or item.encrypted_content is None:
        return "".join(part.text for part in item.content or [])
    try:
        return base64.b64decode(item.encrypted_content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise invalid(f"input: the encrypted content of a reasoning item is not of this adapter: {error}") from error


def _call(call: FunctionCall) -> ToolCall:
    written = call.arguments
    return ToolCall(call.name, read_arguments(written) if isinstance(written, str) else written)


def _part(part: Any, omit_images: bool) -> str:
    if isinstance(part, RefusalPart):
        return part.refusal
    if isinstance(part, MediaPart):
        if not omit_images or "image" not in part.type:
            raise without_images(f"content of type {part.type}")
        return IMAGE_OMITTED
    return str(part.text)
