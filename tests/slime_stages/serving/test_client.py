from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from slime_stages.errors import DataError, InternalError, RetryableError
from slime_stages.serving.client import EngineClient, read_answer

ANSWER = {
    "text": "ab",
    "output_ids": [5, 6],
    "meta_info": {
        "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
        "finish_reason": {"type": "length", "length": 2},
        "weight_version": "7",
    },
}
Serve = Callable[[Callable[[dict[str, Any]], web.Response]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server on a free port that answers each request by a function of its body."""
    runners = []

    async def start(answer: Callable[[dict[str, Any]], web.Response]) -> str:
        async def handle(request: web.Request) -> web.Response:
            return answer(await request.json() | {"routing_key": request.headers.get("X-SMG-Routing-Key")})

        application = web.Application()
        application.router.add_post("/generate", handle)
        runner = web.AppRunner(application)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_real_engine_answers_ids_log_probs_and_version(client: EngineClient) -> None:
    output = await client.generate([10, 20, 30], {"temperature": 1.0, "max_new_tokens": 4, "ignore_eos": True}, rid="a")

    assert len(output.output_ids) == len(output.output_log_probs) == 4
    assert output.finish_reason == "length"
    assert output.weight_version == "0"
    assert max(output.output_log_probs) <= 0


async def test_a_body_may_have_numbers_as_keys_and_an_answer_that_is_no_number_is_told_of(serve: Serve) -> None:
    bodies = []

    def answer(body: dict[str, Any]) -> web.Response:
        bodies.append(body)
        meta = {**ANSWER["meta_info"], "output_token_logprobs": [[float("nan"), 5, None]]}  # type: ignore[dict-item]
        return web.json_response({"output_ids": [5], "meta_info": meta})

    async with EngineClient(await serve(answer), vocab_size=100) as client:
        with pytest.raises(InternalError, match="the answer to g has log-prob nan at token 0"):
            await client.generate([1], {"logit_bias": {5: 1.0}}, rid="g")

    assert bodies[0]["sampling_params"] == {"logit_bias": {"5": 1.0}}


async def test_a_prompt_computed_once_is_in_the_prefix_cache(client: EngineClient) -> None:
    prompt = list(range(40, 80))
    await client.prefill(prompt, rid="prefix")

    output = await client.generate(prompt, {"max_new_tokens": 1}, rid="after-prefix")

    assert output.meta_info["cached_tokens"] == 39


async def test_a_real_engine_refuses_an_unknown_sampling_parameter(client: EngineClient) -> None:
    with pytest.raises(DataError, match="temprature"):
        await client.generate([10], {"temprature": 1.0}, rid="b")


async def test_an_aborted_request_answers_with_what_it_has(client: EngineClient) -> None:
    request = asyncio.create_task(client.generate([10, 11], {"max_new_tokens": 2000, "ignore_eos": True}, rid="long"))
    await asyncio.sleep(1.0)

    await client.abort("long")
    output = await request

    assert output.finish_reason == "abort"
    assert 0 < len(output.output_ids) < 2000


async def test_an_id_outside_the_vocabulary_is_refused_before_it_is_sent() -> None:
    async with EngineClient("http://127.0.0.1:1", vocab_size=512) as client:
        with pytest.raises(DataError, match="request c has token 512 at position 1; the vocabulary has 512"):
            await client.generate([3, 512], {}, rid="c")


async def test_a_prompt_with_images_is_sent_as_text_and_must_come_out_as_the_same_number_of_tokens(
    serve: Serve,
) -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        seen.append(body)
        return web.json_response({**ANSWER, "meta_info": {**ANSWER["meta_info"], "prompt_tokens": 3}})  # type: ignore[dict-item]

    media = {"text": "<image>what?", "image_data": ["data:image/png;base64,AA=="]}
    async with EngineClient(await serve(answer), vocab_size=512) as client:
        output = await client.generate([1, 2, 3], {}, rid="i", media=media)
        with pytest.raises(DataError, match="made 3 tokens of text and images, the prompt table 2"):
            await client.generate([1, 2], {}, rid="j", media=media)

    assert output.output_ids == [5, 6]
    assert {key: seen[0].get(key) for key in ("text", "image_data", "input_ids")} == {**media, "input_ids": None}


async def test_a_server_error_is_tried_again_under_another_id(serve: Serve) -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        seen.append(body)
        return web.json_response(ANSWER) if len(seen) == 3 else web.Response(status=503)

    async with EngineClient(await serve(answer), vocab_size=10) as client:
        output = await client.generate([1], {}, rid="d", routing_key="session", extra={"priority": 1})

    assert (output.output_ids, output.output_log_probs) == ([5, 6], [-0.5, -1.5])
    assert [body["rid"] for body in seen] == ["d", "d.1", "d.2"]
    assert {body["routing_key"] for body in seen} == {"session"}
    assert seen[0]["priority"] == 1


async def test_a_router_without_an_engine_is_asked_again(serve: Serve) -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        seen.append(body)
        error = {"error": {"code": "model_not_found", "message": "No worker available for model 'unknown'"}}
        return web.json_response(ANSWER) if len(seen) == 2 else web.json_response(error, status=404)

    async with EngineClient(await serve(answer), vocab_size=10) as client:
        output = await client.generate([1], {}, rid="d")

    assert output.output_ids == [5, 6]


async def test_an_answer_of_other_weights_than_wanted_is_worth_another_job(serve: Serve) -> None:
    url = await serve(lambda body: web.json_response(ANSWER))

    async with EngineClient(url, vocab_size=10, weight_version="7") as client:
        assert (await client.generate([1], {}, rid="d")).weight_version == "7"
    async with EngineClient(url, vocab_size=10, weight_version="8") as client:
        with pytest.raises(RetryableError, match="was given weights 7 while it worked for 8"):
            await client.generate([1], {}, rid="d")


async def test_an_abort_names_a_request_as_the_engine_may_know_it(serve: Serve) -> None:
    aborted: list[str] = []
    arrived, release = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        if (await request.json())["rid"] == "long":
            return web.Response(status=503)
        arrived.set()
        await release.wait()
        return web.json_response(ANSWER)

    async def abort(request: web.Request) -> web.Response:
        aborted.append((await request.json())["rid"])
        release.set()
        return web.json_response({})

    application = web.Application()
    application.router.add_post("/generate", generate)
    application.router.add_post("/abort_request", abort)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async with EngineClient(url, vocab_size=10) as client, EngineClient(url, vocab_size=10) as other:
        request = asyncio.create_task(client.generate([1], {}, rid="long"))
        await arrived.wait()
        await other.abort("long")
        await request
    await runner.cleanup()

    assert sorted(aborted) == ["long", "long.1"]


async def test_an_engine_that_never_answers_is_given_up_at_the_deadline() -> None:
    async with EngineClient("http://127.0.0.1:1", vocab_size=10, timeout_seconds=0.5) as client:
        with pytest.raises(
            RetryableError, match=r"request e is unanswered after 0.5 s and \d+ tries: .*does not answer"
        ):
            await client.generate([1], {}, rid="e")


def test_a_log_prob_that_is_not_finite_is_an_error() -> None:
    meta_info = ANSWER["meta_info"] | {"output_token_logprobs": [[-0.5, 5, None], [None, 6, None]]}  # type: ignore[operator]

    with pytest.raises(InternalError, match="log-prob None at token 1"):
        read_answer(ANSWER | {"meta_info": meta_info}, "f")


def test_ids_and_log_probs_of_other_tokens_are_an_error() -> None:
    with pytest.raises(InternalError, match="3 tokens, but log-probs of 2 others"):
        read_answer(ANSWER | {"output_ids": [5, 6, 7]}, "g")
