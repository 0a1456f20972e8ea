"""Two hundred runs of an agent at once: none sees another, and what is left afterwards is nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import aiohttp

from slime_stages.agent.adapters.sessions import Session
from slime_stages.agent.trajectory.tree import Node, Tree
from slime_stages.sample import Sample
from tests.slime_stages.agent.adapters.conftest import Served

SESSION_COUNT, TURN_COUNT = 200, 2


async def run_agent(served: Served, http: aiohttp.ClientSession, sid: str) -> list[Sample]:
    """Each turn repeats the whole history; the answers name the session."""
    served.adapter.open_session(sid, max_context_tokens=4096)
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"I am {sid}."}]
    for turn in range(TURN_COUNT):
        body = {"messages": messages}
        headers = {"Authorization": f"Bearer {sid}"}
        async with http.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            message = (await response.json())["choices"][0]["message"]
        assert message["content"] == f"You are {sid}."
        messages = [*messages, message, {"role": "user", "content": f"Sure? {turn}"}]
    return await served.adapter.finish_session(sid, base_sample=Sample(index=int(sid)))


async def run_agents(served: Served) -> list[list[Sample]]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        runs = (run_agent(served, http, str(number)) for number in range(SESSION_COUNT))
        return await asyncio.gather(*runs)


async def test_two_hundred_sessions_at_once_are_told_apart_and_leave_nothing_behind(
    openai_served: Callable[..., Served],
) -> None:
    served = openai_served(lambda body: f"You are {body['routing_key']}.")

    before = kept_objects()

    samples = await run_agents(served)

    for number, [sample] in enumerate(samples):
        assert sample.index == number
        assert served.said(sample) == f"You are {number}.<|im_end|>" * TURN_COUNT
    assert kept_objects() == before


def kept_objects() -> int:
    """What is kept of sessions, by whatever test."""
    gc.collect()
    return sum(type(item) in (Session, Tree, Node) for item in gc.get_objects())
