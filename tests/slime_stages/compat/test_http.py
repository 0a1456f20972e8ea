"""Requests of plug-ins before a server that does what they provoke."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from slime_stages.compat import http
from slime_stages.errors import RetryableError
from slime_stages.serving.in_flight import requests_in_flight


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Answers with what it is asked; refuses `bad`; is busy twice, with 503, before it answers `busy`."""
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    busy = iter([503, 503])

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked.get("bad"):
            raise web.HTTPBadRequest(text="unknown field")
        if asked.get("busy") and (status := next(busy, None)):
            return web.Response(status=status)
        if asked.get("text"):
            return web.Response(text="no JSON")
        return web.json_response({"asked": asked, "key": request.headers.get("X-SMG-Routing-Key")})

    async def no_workers(request: web.Request) -> web.Response:
        return web.json_response({"workers": []})

    app = web.Application()
    app.router.add_post("/generate", answer)
    app.router.add_get("/workers", no_workers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await http.close_http_client()
    await runner.cleanup()


async def test_a_post_returns_json_or_text_and_takes_headers(url: str) -> None:
    answer = await http.post(f"{url}/generate", {"a": 1}, headers={"X-SMG-Routing-Key": "s-1"})

    assert answer == {"asked": {"a": 1}, "key": "s-1"}
    assert await http.post(f"{url}/generate", {"text": True}) == "no JSON"


async def test_a_request_for_tokens_has_an_id_of_ours_and_another_at_each_try(url: str) -> None:
    payload = {"input_ids": [1, 2], "busy": True}

    again, given, batch = [
        (await http.post(f"{url}/generate", each))["asked"]
        for each in (payload, {"input_ids": [1], "rid": "r"}, {"input_ids": [[1], [2]]})
    ]

    assert again["rid"].endswith(".2")
    assert (given["rid"], batch) == ("r", {"input_ids": [[1], [2]]})
    assert payload == {"input_ids": [1, 2], "busy": True}


async def test_a_request_for_tokens_is_known_while_it_is_asked(url: str) -> None:
    asking = asyncio.create_task(http.post(f"{url}/generate", {"input_ids": [1], "rid": "known"}))
    await asyncio.sleep(0)
    before = requests_in_flight()

    await asking

    assert ("known" in before, "known" in requests_in_flight()) == (True, False)


async def test_a_busy_server_is_asked_again(url: str) -> None:
    assert (await http.post(f"{url}/generate", {"busy": True}, max_retries=3))["asked"] == {"busy": True}


async def test_a_server_that_stays_busy_is_given_up(url: str) -> None:
    with pytest.raises(RetryableError, match="gave no answer in 2 tries: 503"):
        await http.post(f"{url}/generate", {"busy": True}, max_retries=2)


async def test_a_refused_request_is_not_sent_again(url: str) -> None:
    with pytest.raises(aiohttp.ClientResponseError, match="unknown field"):
        await http.post(f"{url}/generate", {"bad": True})


async def test_a_server_that_is_not_there_is_given_up_after_so_many_tries(url: str) -> None:
    with pytest.raises(RetryableError, match="gave no answer in 2 tries"):
        await http.get(f"http://127.0.0.1:{http.find_available_port(20000)}/workers", max_retries=2)


async def test_get_reads_json(url: str) -> None:
    assert await http.get(f"{url}/workers") == {"workers": []}


def test_the_engines_of_a_rollout_are_counted_by_what_is_known_of_them() -> None:
    known = SimpleNamespace(rollout_num_engines=3, rollout_num_gpus=None, rollout_num_gpus_per_engine=1)
    by_gpus = SimpleNamespace(rollout_num_engines=None, rollout_num_gpus=8, rollout_num_gpus_per_engine=4)

    assert (http.get_rollout_num_engines(known), http.get_rollout_num_engines(by_gpus)) == (3, 2)


def test_a_free_port_is_none_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert not http.is_port_available(port)
        assert http.find_available_port(port) > port
        assert http.get_free_port(port, consecutive=2) > port


def test_this_machine_is_known_by_the_address_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIME_HOST_IP", "10.1.2.3")

    assert http.get_host_info() == (socket.gethostname(), "10.1.2.3")
    assert http.get_current_node_ip() == "10.1.2.3"
