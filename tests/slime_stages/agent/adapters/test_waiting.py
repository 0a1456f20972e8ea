"""A turn that takes long: a client that streams is told that its answer is still to come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.slime_stages.agent.adapters import test_anthropic_sdk, test_chat_sdk
from tests.slime_stages.agent.adapters.conftest import Served, opened
from tests.slime_stages.agent.adapters.test_chat_sdk import ASKED
from tests.slime_stages.agent.adapters.test_sessions import BODY

PING_SECONDS, TURN_SECONDS = 0.02, 0.5


async def claude(served: Served) -> str:
    client = opened(anthropic.AsyncAnthropic(base_url=served.url, auth_token="s", max_retries=0))
    return (await test_anthropic_sdk.streamed(client, ASKED)).content[0].text  # type: ignore[union-attr]


def openai_client(served: Served) -> openai.AsyncOpenAI:
    return opened(openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="s", max_retries=0))


async def chat(served: Served) -> str:
    return str((await test_chat_sdk.streamed(openai_client(served), ASKED))["message"]["content"])


async def responses(served: Served) -> str:
    async with openai_client(served).responses.stream(model="m", input="Where?") as stream:
        return (await stream.get_final_response()).output_text


async def slowly(served: Served, way: Callable[[Served], Awaitable[str]]) -> str:
    """What a client gets of an engine that takes its time."""
    served.engine.may_answer.clear()
    asking = asyncio.ensure_future(way(served))
    await asyncio.wait([asking], timeout=TURN_SECONDS)
    served.engine.may_answer.set()
    return await asking


WAYS: list[tuple[str, Any]] = [("anthropic_served", claude), ("openai_served", chat), ("openai_served", responses)]


@pytest.mark.parametrize(("kind", "way"), WAYS)
async def test_a_client_takes_pings_and_then_its_answer(request: pytest.FixtureRequest, kind: str, way: Any) -> None:
    served: Served = request.getfixturevalue(kind)(["The sea."], ping_seconds=PING_SECONDS)

    assert await slowly(served, way) == "The sea."

    [sample] = await served.samples()
    assert served.said(sample) == "The sea.<|im_end|>"


@pytest.mark.parametrize(("kind", "way"), WAYS)
async def test_an_error_that_comes_after_a_ping_is_an_event(
    request: pytest.FixtureRequest, kind: str, way: Any
) -> None:
    served: Served = request.getfixturevalue(kind)(["never seen"], ping_seconds=PING_SECONDS)
    served.engine.finish = "abort"

    with pytest.raises((anthropic.APIStatusError, openai.APIError), match="told to end its requests"):
        await slowly(served, way)

    assert await served.samples() == []


async def test_who_leaves_between_two_pings_has_its_request_ended(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["never seen"], ping_seconds=PING_SECONDS)
    served.engine.may_answer.clear()
    async with (
        aiohttp.ClientSession(headers={"X-Api-Key": "s"}) as http,
        http.post(f"{served.url}/v1/messages", json={**BODY, "stream": True}) as response,
    ):
        ping = await response.content.readuntil(b"\n\n")

    assert ping == b'event: ping\ndata: {"type":"ping"}\n\n'
    while served.engine.requests[0]["rid"] not in served.engine.aborted:
        await asyncio.sleep(0.005)
    served.engine.may_answer.set()
    assert await served.samples() == []


async def test_an_answer_that_comes_at_once_has_no_ping_and_may_be_refused(
    openai_served: Callable[..., Served],
) -> None:
    served = openai_served(["The sea."])
    asked_for = {**BODY, "stream": True}
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer s"}) as http:
        async with http.post(f"{served.url}/v1/chat/completions", json=asked_for) as response:
            streamed = await response.read()
        served.engine.finish = "abort"
        served.engine.script = ["never seen"]
        async with http.post(f"{served.url}/v1/chat/completions", json=asked_for) as response:
            status = response.status

    assert b"ping" not in streamed
    assert status == 503
