"""Anthropic's Messages API: what Claude Code and Anthropic's SDKs speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from slime_stages.agent.adapters.anthropic_messages import chat_messages, chat_tools, forced_tools, json_schema
from slime_stages.agent.adapters.anthropic_requests import CountBody, MessagesBody
from slime_stages.agent.adapters.base import MODEL, BaseAdapter
from slime_stages.agent.adapters.endpoint import Endpoint, Event, bearer_token
from slime_stages.agent.adapters.http import read_object
from slime_stages.agent.adapters.sessions import DEFAULT, Session
from slime_stages.agent.adapters.turn import Question, Reply

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class Messages(Endpoint[MessagesBody]):
    """`POST /v1/messages`."""

    path = "/v1/messages"
    body_type = MessagesBody
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, *, omit_images: bool) -> None:
        self.omit_images = omit_images

    def session_id(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        return session_id(headers)

    def is_streamed(self, body: MessagesBody) -> bool:
        return bool(body.stream)

    def question(self, body: MessagesBody, session: Session) -> Question:
        forced = forced_tools(body)
        return Question(
            messages=chat_messages(body, omit_images=self.omit_images),
            tools=chat_tools(body),
            model=body.model or MODEL,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=body.stop_sequences or (),
            forced_tools=forced,
            is_single_call=body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is True,
            json_schema=json_schema(body, forced),
        )

    def answer(self, body: MessagesBody, reply: Reply) -> dict[str, Any]:
        return {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": _blocks(reply),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": None,
            "usage": _usage(reply),
        }

    def events(self, body: MessagesBody, reply: Reply) -> Iterator[Event]:
        whole = self.answer(body, reply)
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
        yield _event("message_start", message=begun)
        for index, block in enumerate(whole["content"]):
            empty, delta = _in_two(block)
            yield _event("content_block_start", index=index, content_block=empty)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=ending, usage=whole["usage"])
        yield _event("message_stop")


class AnthropicAdapter(BaseAdapter):
    """`/v1/messages`, and `/v1/messages/count_tokens` with the count of what the model would be sent."""

    call_prefix = "toolu_"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app.router.add_post("/v1/messages/count_tokens", self._count_tokens)

    def endpoints(self) -> Sequence[Endpoint[Any]]:
        return [Messages(omit_images=self.omit_images)]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "api_error"), "message": message}}

    async def _count_tokens(self, request: web.Request) -> web.Response:
        self.sessions.check(session_id(request.headers))
        body = CountBody.model_validate(await read_object(request))
        messages = chat_messages(body, omit_images=self.omit_images)
        ids = await self.texts.render(Question(messages=messages, tools=chat_tools(body), model=MODEL))
        return web.json_response({"input_tokens": len(ids)})


def session_id(headers: Mapping[str, str]) -> str:
    return bearer_token(headers) or headers.get("X-Api-Key") or DEFAULT


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    thinking = [{"type": "thinking", "thinking": reply.reasoning, "signature": ""}] if reply.reasoning else []
    calls = [
        {"type": "tool_use", "id": item.id, "name": item.call.name, "input": item.call.arguments}
        for item in reply.tool_calls
    ]
    text = [{"type": "text", "text": reply.text}] if reply.text or not (thinking or calls) else []
    return [*thinking, *text, *calls]


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.tool_calls else "max_tokens" if reply.is_cut else "end_turn"


def _usage(reply: Reply) -> dict[str, int]:
    """Anthropic counts what came out of the cache apart."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.output_tokens,
    }


def _event(name: str, **data: Any) -> Event:
    return name, {"type": name, **data}


def _in_two(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block as it begins, and what is then added to it."""
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    written = orjson.dumps(block["input"]).decode()
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}
