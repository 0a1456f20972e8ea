"""slime's own loop, before an engine that answers some requests and holds others until they are ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slime_stages.compat import rollout_loop
from slime_stages.compat.generation import GenerateState, generate
from slime_stages.compat.http import close_http_client
from slime_stages.sample import Sample, Status
from tests.slime_stages.config.settings import resolved


class Engine:
    """Answers with one token; holds prompts that begin with token 1 until their request is ended."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        reason = "stop"
        if body["input_ids"][0] == 1:
            reason, end = "abort", self._ends.setdefault(body["rid"], asyncio.Event())
            await end.wait()
        meta = {"output_token_logprobs": [[-0.5, 7]], "finish_reason": {"type": reason}, "weight_version": "0"}
        return web.json_response({"text": "x", "meta_info": meta})

    async def abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        if rid in self._ends:
            self._ends[rid].set()
        return web.json_response({})


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, int]]:
    engine, app = Engine(), web.Application()
    app.router.add_post("/generate", engine.generate)
    app.router.add_post("/abort_request", engine.abort)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield engine, runner.addresses[0][1]
    await close_http_client()
    await runner.cleanup()


@pytest.fixture
def args(engine: tuple[Engine, int], tiny_model: Path) -> Any:
    settings = resolved(rollout_batch_size=2, n_samples_per_prompt=1, partial_rollout=True)
    given = settings.config.as_args()
    given.hf_checkpoint, given.sglang_router_ip, given.sglang_router_port = str(tiny_model), "127.0.0.1", engine[1]
    given.custom_rm_path = f"{__name__}.length"
    return given


async def length(args: Any, sample: Sample | list[Sample]) -> float | list[float]:
    if isinstance(sample, list):
        return [float(each.response_length) + len(sample) for each in sample]
    return float(sample.response_length)


def only_second(args: Any, group: list[Sample]) -> bool:
    return group[0].index == 1


class Prompts:
    """Groups of one sample whose first token is given."""

    def __init__(self, *tokens: int) -> None:
        self.left = [[Sample(index=n, group_index=n, tokens=[token, 5])] for n, token in enumerate(tokens)]

    def __call__(self, count: int) -> list[list[Sample]]:
        taken, self.left = self.left[:count], self.left[count:]
        return taken


async def test_what_is_not_waited_for_is_cut_short_and_comes_back(args: Any, engine: tuple[Engine, int]) -> None:
    args.over_sampling_batch_size = 3

    made, left = await rollout_loop.generate_rollout_async(args, 4, Prompts(1, 2, 3))

    assert [[sample.index for sample in group] for group in made.samples] == [[1], [2]]
    assert [group[0].reward for group in made.samples] == [1.0, 1.0]
    [[cut]] = left
    assert (cut.index, cut.status, cut.tokens, cut.metadata) == (0, Status.ABORTED, [1, 5, 7], {"start_rollout_id": 4})
    assert not GenerateState(args).aborted


async def test_the_loop_ends_with_the_prompts(args: Any) -> None:
    args.dynamic_sampling_filter_path = f"{__name__}.only_second"

    made, left = await rollout_loop.generate_rollout_async(args, 0, Prompts(2, 3, 4))

    assert [group[0].index for group in made.samples] == [1]
    assert (made.metrics, left) == ({}, [])


async def test_a_group_may_be_scored_as_one(args: Any) -> None:
    args.group_rm = True

    made, _ = await rollout_loop.generate_rollout_async(args, 0, Prompts(2, 3))

    assert [group[0].reward for group in made.samples] == [2.0, 2.0]


async def test_a_request_goes_on_from_the_tokens_that_are_there(args: Any, engine: tuple[Engine, int]) -> None:
    sample = Sample(index=0, tokens=[2, 5, 7], response_length=1, rollout_log_probs=[-0.1], session_id="s")

    await generate(args, sample, {"max_new_tokens": 4, "temperature": 1.0})
    full = await generate(args, Sample(tokens=[2, 7, 7], response_length=2), {"max_new_tokens": 2})

    [asked] = engine[0].asked
    assert (asked["input_ids"], asked["sampling_params"]["max_new_tokens"]) == ([2, 5, 7], 3)
    assert asked["rid"].startswith("s-")
    assert (sample.tokens, sample.rollout_log_probs, sample.response) == ([2, 5, 7, 7], [-0.1, -0.5], "x")
    assert full.status is Status.TRUNCATED


async def test_a_sample_that_is_finished_is_not_asked_again(args: Any) -> None:
    with pytest.raises(ValueError, match="sample 0 is completed already"):
        await generate(args, Sample(index=0, tokens=[2], status=Status.COMPLETED), {"max_new_tokens": 2})


def test_what_a_function_returns_bare_is_wrapped() -> None:
    group = [[Sample()]]

    assert rollout_loop.call_rollout_fn(lambda evaluation: group, evaluation=False).samples is group
    assert rollout_loop.call_rollout_fn(lambda evaluation: {"a": {}}, evaluation=True).data == {"a": {}}
