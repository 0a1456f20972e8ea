"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_stages.agent.adapters.base import MODEL
from slime_stages.agent.adapters.endpoint import Endpoint, Event
from slime_stages.agent.adapters.errors import RequestError, invalid
from slime_stages.agent.adapters.openai_choices import forced_tools, json_schema, offered_tools
from slime_stages.agent.adapters.openai_messages import item_messages, opaque
from slime_stages.agent.adapters.openai_requests import Format, MessageItem, ResponsesBody
from slime_stages.agent.adapters.openai_sessions import session_id
from slime_stages.agent.adapters.response_events import item_events
from slime_stages.agent.adapters.sessions import Session
from slime_stages.agent.adapters.turn import Message, Question, Reply
from slime_stages.agent.parsing import write_arguments

ENCRYPTED_REASONING = "reasoning.encrypted_content"


class Responses(Endpoint[ResponsesBody]):
    """`POST /v1/responses`."""

    path = "/v1/responses"
    body_type = ResponsesBody

    def __init__(self, *, omit_images: bool) -> None:
        self.omit_images = omit_images

    def session_id(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
        return session_id(headers, body)

    def is_streamed(self, body: ResponsesBody) -> bool:
        return bool(body.stream)

    def question(self, body: ResponsesBody, session: Session) -> Question:
        if body.background:
            raise invalid("background: a response is waited for")
        history = [*self._previous(body, session), *self._new(body)]
        if not history:
            raise invalid("input: there is nothing to answer")
        forced = forced_tools(body)
        return Question(
            messages=[*_system(body.instructions), *history],
            tools=offered_tools(body),
            model=body.model or MODEL,
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            forced_tools=forced,
            is_single_call=body.parallel_tool_calls is False,
            json_schema=json_schema(_format(body), "text.format", forced),
        )

    def answer(self, body: ResponsesBody, reply: Reply) -> dict[str, Any]:
        output = _output(body, reply)
        ending = {"reason": "max_output_tokens"} if reply.is_cut else None
        status = "incomplete" if reply.is_cut else "completed"
        return {**_head(body, reply), "status": status, "incomplete_details": ending, "output": output} | {
            "usage": _usage(reply)
        }

    def events(self, body: ResponsesBody, reply: Reply) -> Iterator[Event]:
        whole = self.answer(body, reply)
        begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        bare: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(whole["output"]):
            bare.extend({**event, "output_index": index} for event in item_events(item))
        bare.append({"type": f"response.{whole['status']}", "response": whole})
        for number, event in enumerate(bare):
            yield event["type"], {**event, "sequence_number": number}

    def remember(self, body: ResponsesBody, session: Session, question: Question, reply: Reply) -> None:
        """The history without instructions, which hold for one request."""
        if body.store is not False:
            history = question.messages[len(_system(body.instructions)) :]
            session.histories[f"resp_{reply.id}"] = [*history, reply.message]

    def _previous(self, body: ResponsesBody, session: Session) -> list[Message]:
        if body.previous_response_id is None:
            return []
        if body.previous_response_id not in session.histories:
            raise RequestError(404, f"previous_response_id: there is no {body.previous_response_id} in this session")
        return session.histories[body.previous_response_id]

    def _new(self, body: ResponsesBody) -> list[Message]:
        if not isinstance(body.input, str):
            return item_messages(body.input, omit_images=self.omit_images)
        words = [MessageItem(role="user", content=body.input)] if body.input else []
        return item_messages(words, omit_images=self.omit_images)


def _format(body: ResponsesBody) -> Format | None:
    return body.text.format if body.text else None


def _system(instructions: str | None) -> list[Message]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _output(body: ResponsesBody, reply: Reply) -> list[dict[str, Any]]:
    """Items in the order in which a model writes them."""
    status = "incomplete" if reply.is_cut else "completed"
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        hidden = opaque(reply.reasoning) if ENCRYPTED_REASONING in (body.include or ()) else None
        items.append({"type": "reasoning", "summary": [], "content": content, "encrypted_content": hidden})
    if reply.text or not (reply.reasoning or reply.tool_calls):
        text = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "role": "assistant", "status": status, "content": [text]})
    for item in reply.tool_calls:
        call = {"name": item.call.name, "arguments": write_arguments(item.call.arguments)}
        items.append({"type": "function_call", "call_id": item.id, "status": status, **call})
    prefixes = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
    return [{"id": f"{prefixes[item['type']]}_{reply.id}{number:02d}", **item} for number, item in enumerate(items)]


def _head(body: ResponsesBody, reply: Reply) -> dict[str, Any]:
    """What a response repeats of its request."""
    form = _format(body)
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created_at,
        "model": reply.model,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": form.model_dump(by_alias=True, exclude_unset=True) if form else {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in offered_tools(body)],
        "top_p": body.top_p,
        "truncation": "disabled",
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }
