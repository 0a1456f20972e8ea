"""The vendors' SDKs in front of a real SGLang server: what is recorded is what the engine sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from slime_stages.agent.adapters import AnthropicAdapter, BaseAdapter, OpenAIAdapter, run_app_in_thread
from slime_stages.prompts.tokenizer import load_tokenizer
from slime_stages.sample import Sample
from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine
from slime_stages.serving.in_flight import requests_in_flight
from tests.e2e.runs import at_version_0
from tests.fixtures.tiny_model import VOCABULARY_SIZE
from tests.slime_stages.agent.adapters.conftest import PARSERS, opened
from tests.slime_stages.agent.adapters.test_anthropic_sdk import SEARCH
from tests.slime_stages.agent.adapters.test_chat_sdk import FLAT_SEARCH

SAMPLING = {"temperature": 1.0, "max_new_tokens": 12, "sampling_seed": 7}
MODEL = {"model": "slime-actor"}


@contextmanager
def served(
    kind: type[BaseAdapter], engine: Engine, model: Path, *sids: str, **settings: Any
) -> Iterator[tuple[BaseAdapter, str]]:
    at_version_0(engine)
    adapter = kind(load_tokenizer(model), engine.url, **{**PARSERS, **settings})
    for sid in sids:
        adapter.open_session(sid, sampling_defaults=SAMPLING, max_context_tokens=512)
    with run_app_in_thread(adapter.app) as running:
        yield adapter, running.url


async def check(engine: Engine, samples: list[Sample]) -> None:
    """The engine gives the tokens that are trained on the log-probs that the samples have."""
    assert samples
    async with EngineClient(engine.url, vocab_size=VOCABULARY_SIZE) as client:
        for sample in samples:
            sample.check_lengths()
            extra = {"logprob_start_len": 0}
            output = await client.generate(sample.tokens, {"max_new_tokens": 1}, rid=f"check-{id(sample)}", extra=extra)
            scored = [pair[0] for pair in output.meta_info["input_token_logprobs"]][sample.prompt_length :]
            assert sample.loss_mask is not None
            assert sample.rollout_log_probs is not None
            for mask, log_prob, expected in zip(sample.loss_mask, sample.rollout_log_probs, scored, strict=True):
                assert not mask or log_prob == pytest.approx(expected, abs=1e-3)
            assert set(sample.weight_versions) == {"0"}


async def messages_turns(client: anthropic.AsyncAnthropic, stream: bool) -> None:
    history: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
    for _ in range(2):
        options: dict[str, Any] = {**MODEL, "max_tokens": 8, "messages": history, "tools": [SEARCH]}
        if stream:
            async with client.messages.stream(**options) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**options)
        assert message.usage.output_tokens > 0
        history = [*history, {"role": "assistant", "content": message.content}, {"role": "user", "content": "Sure?"}]


async def chat_turns(client: openai.AsyncOpenAI, stream: bool) -> None:
    history: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
    for _ in range(2):
        options: dict[str, Any] = {**MODEL, "max_tokens": 8, "messages": history}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
            content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            completion = await client.chat.completions.create(**options)
            content = completion.choices[0].message.content
        history = [*history, {"role": "assistant", "content": content}, {"role": "user", "content": "Sure?"}]


async def responses_turns(client: openai.AsyncOpenAI, stream: bool) -> None:
    previous: str | None = None
    for asked in ("What is 1 + 2?", "Sure?"):
        options: dict[str, Any] = {**MODEL, "input": asked, "tools": [FLAT_SEARCH], "previous_response_id": previous}
        if stream:
            events = [event async for event in await client.responses.create(**options, stream=True)]
            response = events[-1].response
        else:
            response = await client.responses.create(**options)
        previous = response.id


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(tiny_engine: Engine, tiny_model: Path, stream: bool) -> None:
    with served(AnthropicAdapter, tiny_engine, tiny_model, "s") as (adapter, url):
        await messages_turns(opened(anthropic.AsyncAnthropic(base_url=url, auth_token="s", api_key=None)), stream)

        await check(tiny_engine, await adapter.finish_session("s", base_sample=Sample(index=0)))


async def test_both_protocols_of_openai_in_parallel_sessions(tiny_engine: Engine, tiny_model: Path) -> None:
    sids = ["a", "b", "c", "d"]
    with served(OpenAIAdapter, tiny_engine, tiny_model, *sids) as (adapter, url):
        clients = [opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=sid)) for sid in sids]
        await asyncio.gather(
            chat_turns(clients[0], False),
            chat_turns(clients[1], True),
            responses_turns(clients[2], False),
            responses_turns(clients[3], True),
        )

        for sid in sids:
            await check(tiny_engine, await adapter.finish_session(sid, base_sample=Sample(index=0)))


async def test_a_client_that_leaves_frees_the_engine(tiny_engine: Engine, tiny_model: Path) -> None:
    with served(OpenAIAdapter, tiny_engine, tiny_model) as (adapter, url):
        endless = {**SAMPLING, "max_new_tokens": 3000, "ignore_eos": True}
        adapter.open_session("s", sampling_defaults=endless)
        client = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s", max_retries=0))
        asked: Any = {**MODEL, "messages": [{"role": "user", "content": "Go on."}]}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.chat.completions.create(**asked), 0.5)

        async with asyncio.timeout(30):
            while await running_requests(tiny_engine):
                await asyncio.sleep(0.1)
        assert await adapter.finish_session("s", base_sample=Sample(index=0)) == []


async def test_what_this_process_asks_of_a_shared_engine_ends_without_the_requests_of_others(
    tiny_engine: Engine, tiny_model: Path
) -> None:
    with served(OpenAIAdapter, tiny_engine, tiny_model) as (adapter, url):
        adapter.open_session("s", sampling_defaults={**SAMPLING, "max_new_tokens": 3000, "ignore_eos": True})
        client = opened(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="s", max_retries=0))
        asked: Any = {**MODEL, "messages": [{"role": "user", "content": "Go on."}]}
        ours = asyncio.create_task(client.chat.completions.create(**asked))
        theirs = asyncio.create_task(ask_apart(tiny_engine, {"max_new_tokens": 150, "ignore_eos": True}))
        while await running_requests(tiny_engine) < 2:
            await asyncio.sleep(0.02)

        async with EngineClient(tiny_engine.url, vocab_size=VOCABULARY_SIZE) as control:
            for rid in requests_in_flight():
                await control.abort(rid)

        with pytest.raises(openai.InternalServerError, match="told to end its requests"):
            await ours
        assert (await theirs)["finish_reason"]["type"] == "length"
        assert await adapter.finish_session("s", base_sample=Sample(index=0)) == []


async def ask_apart(engine: Engine, params: dict[str, Any]) -> dict[str, Any]:
    """What the engine says of an answer to somebody who is not of this process."""
    asked = {"input_ids": [5, 6, 7], "sampling_params": params}
    async with aiohttp.ClientSession() as http, http.post(f"{engine.url}/generate", json=asked) as response:
        return dict((await response.json())["meta_info"])


async def running_requests(engine: Engine) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/v1/loads?include=core") as response:
        loads = (await response.json())["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
