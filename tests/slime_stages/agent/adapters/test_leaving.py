"""A client that leaves, at whatever point: the engine stops, nothing is recorded, and the session goes on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.slime_stages.agent.adapters.conftest import Served
from tests.slime_stages.agent.adapters.scripted_engine import ScriptedEngine, serving
from tests.slime_stages.agent.adapters.test_sessions import BODY, asked, post_later

DATA = json.dumps(BODY).encode()
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: s\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(DATA) + DATA


def connection_to(served: Served) -> socket.socket:
    """One that takes in little at a time."""
    address = urlsplit(served.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((str(address.hostname), address.port))
    return connection


async def goes_on(served: Served) -> None:
    """The session takes the next request, and has only that in its sample."""
    served.engine.script = ["after"]
    served.engine.may_answer.set()
    assert await post_later(served) == 200
    [sample] = await served.samples()
    assert served.said(sample) == "after<|im_end|>"


@pytest.mark.parametrize("length", [0, len(HEAD) // 2, len(HEAD), len(WHOLE) - 1])
async def test_before_the_request_is_whole(anthropic_served: Callable[..., Served], length: int) -> None:
    served = anthropic_served()
    connection = connection_to(served)
    connection.sendall(WHOLE[:length])
    await asyncio.sleep(0.02)
    connection.close()

    await goes_on(served)
    assert len(served.engine.requests) == 1


async def test_while_the_engine_is_at_work(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["never seen"])
    served.engine.may_answer.clear()
    connection = connection_to(served)
    connection.sendall(WHOLE)
    await asked(served)

    connection.close()

    rid = served.engine.requests[0]["rid"]
    while rid not in served.engine.aborted or rid not in served.engine.left:
        await asyncio.sleep(0.005)
    await goes_on(served)


async def test_while_the_engine_is_asked_a_second_time(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["never seen"])
    served.engine.may_answer.clear()
    served.engine.status = 503
    connection = connection_to(served)
    connection.sendall(WHOLE)
    await asked(served)
    served.engine.status = 200
    await asked(served, 2)

    connection.close()

    rids = {request["rid"] for request in served.engine.requests}
    while not rids <= {*served.engine.aborted}:
        await asyncio.sleep(0.005)
    assert len(rids) == 2
    await goes_on(served)


async def test_while_an_engine_behind_a_router_is_at_work(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["never seen"])
    with serving(ScriptedEngine(served.engine.tokenizer)) as behind:
        served.engine.workers = [behind.url]
        served.engine.may_answer.clear()
        connection = connection_to(served)
        connection.sendall(WHOLE)
        await asked(served)

        connection.close()

        while served.engine.requests[0]["rid"] not in behind.aborted:
            await asyncio.sleep(0.005)
        await goes_on(served)


@pytest.mark.parametrize("taken", [0, 100, 5_000])
async def test_while_the_answer_is_on_its_way(anthropic_served: Callable[..., Served], taken: int) -> None:
    served = anthropic_served(["word " * 10_000])  # more than the client's buffer holds
    connection = connection_to(served)
    connection.sendall(WHOLE)
    await asked(served)
    received = len(await asyncio.to_thread(connection.recv, 10))
    while received < taken:
        received += len(await asyncio.to_thread(connection.recv, 4096))

    connection.close()

    await goes_on(served)


async def test_one_answer_that_is_not_fetched_does_not_hold_up_the_others_for_long(
    anthropic_served: Callable[..., Served],
) -> None:
    served = anthropic_served(["word " * 10_000, "after"])
    connection = connection_to(served)
    connection.sendall(WHOLE)
    await asyncio.to_thread(connection.recv, 10)

    assert await post_later(served) == 200
    [sample] = await served.samples(wait_timeout=0.1)

    assert served.said(sample) == "after<|im_end|>"
    connection.close()


async def test_after_the_answer_came(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["seen"])
    connection = connection_to(served)
    connection.sendall(WHOLE)
    await read_until(connection, b"}")
    connection.close()

    [sample] = await served.samples()

    assert served.said(sample) == "seen<|im_end|>"


async def test_after_the_last_event_though_the_stream_has_not_ended(anthropic_served: Callable[..., Served]) -> None:
    served = anthropic_served(["seen"])
    data = json.dumps({**BODY, "stream": True}).encode()
    connection = connection_to(served)
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    await read_until(connection, b'{"type":"message_stop"}\n\n\r\n')
    connection.close()

    [sample] = await served.samples()

    assert served.said(sample) == "seen<|im_end|>"


async def read_until(connection: socket.socket, end: bytes) -> None:
    answer = b""
    while not answer.endswith(end):
        received = await asyncio.to_thread(connection.recv, 4096)
        assert received, answer
        answer += received
