"""The life of a session: opened, asked in, capped, closed, finished once, forgotten."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from slime_stages.agent.adapters import AnthropicAdapter, OpenAIAdapter, run_app_in_thread
from slime_stages.agent.adapters.engine import sampling_params
from slime_stages.agent.adapters.sessions import Session
from slime_stages.agent.adapters.turn import Constraint, Question
from slime_stages.errors import UsageError
from slime_stages.sample import Sample, Status
from tests.slime_stages.agent.adapters.conftest import Served

BODY = {"messages": [{"role": "user", "content": "Where?"}]}


def post(
    served: Served, sid: str | None = "s", body: Any = None, path: str = "/v1/messages", method: str = "POST"
) -> tuple[int, Any, Mapping[str, str]]:
    """Status, object and headers of an answer; the way of a client that knows no SDK."""
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(BODY if body is None else body).encode()
    connection.request(method, path, data, {} if sid is None else {"X-Api-Key": sid})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None, dict(answer.headers)


async def post_later(served: Served, sid: str = "s", body: Any = None) -> int:
    return (await asyncio.to_thread(post, served, sid, body))[0]


async def asked(served: Served, count: int = 1) -> None:
    while len(served.engine.requests) < count:
        await asyncio.sleep(0.005)


async def test_a_session_gives_its_samples_once(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["a"])
    assert await post_later(served) == 200

    assert len(await served.samples(extra_metadata={"task": 7})) == 1
    assert await served.samples() == []
    assert await served.samples("never opened") == []


async def test_a_closed_session_lets_nothing_in_and_its_id_is_used_up(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["a"])
    await served.samples()

    status, answer, headers = post(served)

    assert (status, answer["error"]["message"], headers["x-should-retry"]) == (503, "session closed", "false")
    with pytest.raises(ValueError, match="'s' exists already"):
        served.adapter.open_session("s")
    served.adapter.open_session("t")
    with pytest.raises(ValueError, match="'t' exists already"):
        served.adapter.open_session("t")


async def test_a_session_that_was_shut_down_can_be_finished_and_a_dropped_one_not(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a", "b"])
    assert await post_later(served) == await post_later(served, "other") == 200

    await served.adapter.shutdown_session("s")
    await served.adapter.drop_session("other")

    assert [post(served)[0], post(served, "other")[0]] == [503, 503]
    assert [len(await served.samples()), len(await served.samples("other"))] == [1, 0]


async def test_a_session_that_nobody_opened_is_let_in_unless_only_known_ones_are(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a", "b", "c"])
    strict = anthropic_served(["a"], known_sessions_only=True)

    assert [post(served, "new")[0], post(served, None)[0]] == [200, 200]
    assert [request["routing_key"] for request in served.engine.requests] == ["new", None]
    assert [len(await served.samples(sid)) for sid in ("new", "default")] == [1, 1]
    assert [post(strict)[0], post(strict, "new")[0], post(strict, None)[0]] == [200, 401, 401]
    assert post(strict, "new")[1]["error"]["type"] == "authentication_error"
    assert post(strict, "new", path="/v1/messages/count_tokens")[0] == 401


@pytest.mark.parametrize("sid", ["", "a\nb", "x" * 513, "\ud800"])
def test_an_id_that_no_header_carries_is_refused(sid: str, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="no session id"):
        OpenAIAdapter(tokenizer, "http://127.0.0.1:9").open_session(sid)


async def test_requests_beyond_the_cap_are_refused_before_the_engine_is_asked(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a", "b"], max_turns_per_sid=1)

    assert [post(served)[0], post(served)[0], post(served, "other")[0]] == [200, 429, 200]
    assert len(served.engine.requests) == 2


async def test_a_request_at_work_is_waited_for_when_its_session_is_finished(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a"])
    served.engine.may_answer.clear()
    request = asyncio.create_task(post_later(served))
    await asked(served)

    finishing = asyncio.create_task(served.samples())
    await asyncio.sleep(0.05)
    assert post(served)[0] == 503
    served.engine.may_answer.set()

    assert (await request, len(await finishing)) == (200, 1)


async def test_a_request_that_takes_too_long_is_ended_in_the_engine_too(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a"])
    served.engine.may_answer.clear()
    request = asyncio.create_task(post_later(served))
    await asked(served)

    assert await served.samples(wait_timeout=0.05) == []

    with pytest.raises((http.client.HTTPException, ConnectionError)):
        await request
    while served.engine.requests[0]["rid"] not in served.engine.aborted:
        await asyncio.sleep(0.005)


async def test_a_prompt_that_fills_the_context_is_answered_with_nothing(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a"], session={"max_context_tokens": 25})
    long = {"messages": [{"role": "user", "content": "Where? " * 30}]}

    assert await post_later(served) == 200
    status, answer, _ = post(served, body=long)

    [request] = served.engine.requests
    assert request["sampling_params"]["max_new_tokens"] == 25 - len(request["input_ids"])
    assert (status, answer["content"], answer["stop_reason"]) == (200, [{"type": "text", "text": ""}], "max_tokens")
    [sample] = await served.samples()
    assert sample.status == Status.COMPLETED


def params(defaults: dict[str, Any], room: int | None = None, **more: Any) -> dict[str, Any]:
    question = Question(messages=[], tools=[], model="m", **more)
    return sampling_params(defaults, question, Constraint(), room)


def test_sampling_is_the_sessions_then_the_requests() -> None:
    assert params({}) == {
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "max_new_tokens": 4096,
    }
    session = {"temperature": 1.0, "top_p": 0.9, "stop": ["a"], "max_new_tokens": 100, "min_new_tokens": 20}
    assert params(session).items() >= session.items()
    asked_for = params(session, room=9, temperature=0.0, top_k=5, stop=["b"], max_tokens=50)
    assert asked_for.items() >= {"temperature": 0.0, "top_p": 0.9, "top_k": 5, "stop": ["b"]}.items()
    assert (asked_for["max_new_tokens"], asked_for["min_new_tokens"]) == (9, 9)
    assert params(session, max_tokens=500)["max_new_tokens"] == 100


@pytest.mark.parametrize(
    ("engine", "status", "kind"), [(400, 400, "invalid_request_error"), (500, 503, "api_error"), (0, 500, "api_error")]
)
async def test_what_the_engine_does_not_answer_is_told_and_not_recorded(
    anthropic_served: Callable[..., Served], engine: int, status: int, kind: str
) -> None:
    served = anthropic_served(["a"], timeout_seconds=0.3)
    if engine:
        served.engine.status = engine
    else:
        served.engine.answer = lambda body, ids: {"text": "without meta"}  # type: ignore[method-assign]

    answered, answer, _ = post(served)

    assert (answered, answer["error"]["type"]) == (status, kind)
    assert await served.samples() == []


async def test_an_answer_that_was_aborted_in_the_engine_is_asked_for_again(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a"])
    served.engine.finish = "abort"

    status, _, headers = post(served)

    assert (status, headers.get("x-should-retry")) == (503, None)
    assert await served.samples() == []


async def test_a_callback_sees_each_turn_and_may_fail(
    anthropic_served: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def look(*turn: Any) -> None:
        seen.append(turn)
        raise RuntimeError("disk full")

    served = anthropic_served(["a"], debug_callback=look)

    assert await post_later(served) == 200
    assert len(await served.samples()) == 1  # which waits until the request is done with

    [(sid, messages, tools, message, record)] = seen
    assert (sid, messages, tools) == ("s", [{"role": "user", "content": "Where?"}], [])
    assert (message, record.finish_reason) == ({"role": "assistant", "content": "a"}, "stop")
    assert "the debug callback fails in session s" in caplog.text


async def test_the_chat_template_takes_the_kwargs_of_the_adapter(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["a"], chat_template_kwargs={"enable_thinking": False})

    assert post(served)[0] == 200
    assert served.engine.tokenizer.decode(served.engine.requests[0]["input_ids"]).endswith("</think>\n\n")


@pytest.mark.parametrize("path", ["/healthz", "/v1/models"])
def test_an_adapter_says_that_it_is_there(anthropic_served: Callable[..., Served], path: str) -> None:
    status, answer, _ = post(anthropic_served(), path=path, method="GET")

    assert (status, answer["ok"]) == (200, True)


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "kind"),
    [
        ("/v1/nothing", "POST", {}, 404, "not_found_error"),
        ("/v1/messages", "GET", b"", 405, "invalid_request_error"),
        ("/v1/messages", "POST", b"{", 400, "invalid_request_error"),
        ("/v1/messages", "POST", [], 400, "invalid_request_error"),
        ("/v1/messages", "POST", {"messages": "hi"}, 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", "POST", {}, 400, "invalid_request_error"),
    ],
)
def test_a_request_that_is_none_is_refused(
    anthropic_served: Callable[..., Served], path: str, method: str, body: Any, status: int, kind: str
) -> None:
    answered, answer, _ = post(anthropic_served(), body=body, path=path, method=method)

    assert (answered, answer["type"], answer["error"]["type"]) == (status, "error", kind)


def test_an_address_that_is_taken_is_told_of(anthropic_served: Callable[..., Served], tokenizer: Any) -> None:
    taken = int(anthropic_served().url.rpartition(":")[2])

    with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{taken}"):
        run_app_in_thread(AnthropicAdapter(tokenizer, "http://127.0.0.1:9").app, port=taken)


def test_a_parser_that_does_not_exist_is_refused_when_the_adapter_is_made(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="no parser nothing"):
        AnthropicAdapter(tokenizer, "http://127.0.0.1:9", tool_parser="nothing")


async def test_a_sample_without_a_base_reward_is_left_to_the_reward_stage(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["a"])
    assert await post_later(served) == 200

    [sample] = await served.samples(reward=None, base_sample=Sample(index=3))

    assert (sample.reward, sample.index, sample.rollout_id) == (None, 3, 3)


async def test_an_answer_is_recorded_behind_those_that_its_request_was_built_on() -> None:
    session = Session(id="s")
    order = []
    first_taken = asyncio.Event()

    async def first() -> None:
        async with session.delivery([]):
            await first_taken.wait()
            order.append("first")

    async def second() -> None:
        async with session.delivery([*session.deliveries]):
            order.append("second")

    tasks = [asyncio.create_task(first())]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(second()))
    await asyncio.sleep(0.01)
    assert order == []
    first_taken.set()
    await asyncio.gather(*tasks)

    assert order == ["first", "second"]
    assert session.deliveries == set()
