"""Whatever a client sends, it is answered: with an answer, or with an error that is the client's."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_stages.agent.adapters import AnthropicAdapter, OpenAIAdapter
from tests.slime_stages.agent.adapters.conftest import PARSERS, Served

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
ANTHROPIC = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s"}],
    "temperature": 0.5,
    "stop_sequences": ["z"],
    "stream": False,
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "name": "f"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "messages": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
        {"role": "system", "content": "s"},
    ],
}
CHAT = {
    "model": "m",
    "max_tokens": 9,
    "temperature": 0.5,
    "stop": "z",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "text", "json_schema": {"name": "n", "schema": SCHEMA}},
    "metadata": {"session_id": "s"},
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
}
RESPONSES = {
    "model": "m",
    "max_output_tokens": 9,
    "instructions": "s",
    "include": ["reasoning.encrypted_content"],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
    ],
}
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/messages": (AnthropicAdapter, ANTHROPIC),
    "/v1/messages/count_tokens": (AnthropicAdapter, ANTHROPIC),
    "/v1/chat/completions": (OpenAIAdapter, CHAT),
    "/v1/responses": (OpenAIAdapter, RESPONSES),
}
WORDS = st.sampled_from(
    ["", "user", "system", "text", "image", "tool_use", "function_call", "\u2028", "\x00", "<think>"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.just("type"), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything within a body."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    body = copy.deepcopy(body)
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return body


def status_of(served: Served, path: str, data: bytes) -> tuple[int, bytes]:
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    status, text = response.status, response.read()
    connection.close()
    return status, text


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_is_answered_with_an_error_of_ours(
    path: str, serve: Callable[..., Served], data: st.DataObject
) -> None:
    served = shared(path, serve)
    body = ROUTES[path][1]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(body)))
        body = changed(body, place, data.draw(anything))

    status, answer = status_of(served, path, json.dumps(body).encode())

    assert status in (200, 400, 404), answer
    assert status == 200 or "error" in json.loads(answer)


@pytest.mark.parametrize("path", ROUTES)
def test_the_bodies_that_are_changed_are_good_ones(path: str, serve: Callable[..., Served]) -> None:
    assert status_of(shared(path, serve), path, json.dumps(ROUTES[path][1]).encode())[0] == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"null", b'{"a": "\\ud800"}', b"[" * 2000, b'{"messages": ' * 600, b"{}"]
)
def test_a_body_that_is_no_object_or_empty_is_the_clients_error(
    path: str, data: bytes, serve: Callable[..., Served]
) -> None:
    status, answer = status_of(shared(path, serve), path, data)

    assert (status, "error" in json.loads(answer)) == (400, True)


_served: dict[Any, Served] = {}


@pytest.fixture(autouse=True)
def _forget_servers() -> Any:
    """Within a test, its examples share a server."""
    _served.clear()
    yield
    _served.clear()


def shared(path: str, serve: Callable[..., Served]) -> Served:
    kind = ROUTES[path][0]
    if kind not in _served:
        _served[kind] = serve(kind, lambda body: "I look.", **PARSERS)
    return _served[kind]
