"""Clients that end with their event loop, whoever forgets them."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from slime_stages.serving.per_loop import PerLoop
from tests.e2e.stage_calls import ROOT


class Client:
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def test_a_loop_has_one_client_which_ends_with_it() -> None:
    clients = PerLoop(Client)

    async def asked_twice() -> tuple[Client, Client]:
        first, second = await asyncio.gather(clients.get(), clients.get())
        assert not first.is_closed
        return first, second

    first, second = asyncio.run(asked_twice())
    other, _ = asyncio.run(asked_twice())

    assert first is second
    assert first is not other
    assert first.is_closed
    assert other.is_closed


async def test_after_its_client_was_closed_a_loop_gets_another_one() -> None:
    clients = PerLoop(Client)
    first = await clients.get()

    await clients.close()
    await clients.close()

    assert first.is_closed
    assert await clients.get() is not first


FORGETFUL = """
import asyncio
from slime_stages.compat import event_loop, http

async def ask():
    await http.get("http://127.0.0.1:9/", max_retries=0)

for run in (asyncio.run, event_loop.run):
    try:
        run(ask())
    except Exception as error:
        print(type(error).__name__)
"""


def test_plug_ins_leave_no_connection_open_when_their_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", FORGETFUL], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("RetryableError\nRetryableError\n", "")
