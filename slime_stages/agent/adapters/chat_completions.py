"""OpenAI's Chat Completions API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_stages.agent.adapters.base import MODEL
from slime_stages.agent.adapters.endpoint import Endpoint, Event
from slime_stages.agent.adapters.openai_choices import forced_tools, json_schema, offered_tools
from slime_stages.agent.adapters.openai_messages import chat_message
from slime_stages.agent.adapters.openai_requests import ChatBody
from slime_stages.agent.adapters.openai_sessions import session_id
from slime_stages.agent.adapters.sessions import Session
from slime_stages.agent.adapters.turn import Question, Reply
from slime_stages.agent.parsing import write_arguments


class ChatCompletions(Endpoint[ChatBody]):
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    body_type = ChatBody

    def __init__(self, *, omit_images: bool) -> None:
        self.omit_images = omit_images

    def session_id(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        return session_id(headers, body)

    def is_streamed(self, body: ChatBody) -> bool:
        return bool(body.stream)

    def question(self, body: ChatBody, session: Session) -> Question:
        forced = forced_tools(body)
        return Question(
            messages=[chat_message(message, omit_images=self.omit_images) for message in body.messages],
            tools=offered_tools(body),
            model=body.model or MODEL,
            max_tokens=body.max_completion_tokens or body.max_tokens or body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
            forced_tools=forced,
            is_single_call=body.parallel_tool_calls is False,
            json_schema=json_schema(body.response_format, "response_format", forced),
        )

    def answer(self, body: ChatBody, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.tool_calls else "")}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = _calls(reply)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}

    def events(self, body: ChatBody, reply: Reply) -> Iterator[Event]:
        counts_apart = body.stream_options is not None and bool(body.stream_options.include_usage)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if reply.reasoning:
            deltas.append({"reasoning_content": reply.reasoning})
        if reply.text:
            deltas.append({"content": reply.text})
        if reply.tool_calls:
            deltas.append({"tool_calls": [{"index": index, **call} for index, call in enumerate(_calls(reply))]})
        for delta in deltas:
            yield None, _chunk(reply, delta)
        last = _chunk(reply, {}, finish_reason=_finish_reason(reply))
        yield None, last if counts_apart else {**last, "usage": _usage(reply)}
        if counts_apart:
            yield None, {**_head(reply, "chat.completion.chunk"), "choices": [], "usage": _usage(reply)}
        yield None, "[DONE]"


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created_at, "model": reply.model}


def _chunk(reply: Reply, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**_head(reply, "chat.completion.chunk"), "choices": [choice]}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": item.id,
            "type": "function",
            "function": {"name": item.call.name, "arguments": write_arguments(item.call.arguments)},
        }
        for item in reply.tool_calls
    ]


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else "length" if reply.is_cut else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
