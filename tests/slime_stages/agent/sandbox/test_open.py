"""Sandboxes by name, so many at a time."""

from __future__ import annotations

import asyncio

import pytest

from slime_stages.agent.sandbox.local import LocalSandbox
from slime_stages.agent.sandbox.open import Sandboxes, load_kind
from slime_stages.errors import UsageError
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL


def test_a_kind_is_a_name_or_an_import_path() -> None:
    assert load_kind("local") is LocalSandbox
    assert load_kind("slime_stages.agent.sandbox.local.LocalSandbox") is LocalSandbox
    with pytest.raises(UsageError, match="there is no sandbox `docker`") as caught:
        load_kind("docker")
    assert caught.value.hint == "local, apptainer, e2b, or package.module:Class"


async def test_no_more_sandboxes_than_places_are_open_at_a_time() -> None:
    sandboxes = Sandboxes("local", SMALL, concurrency=2)
    open_now, most = 0, 0
    two_are_open = asyncio.Event()

    async def use(number: int) -> str:
        nonlocal open_now, most
        async with sandboxes.open(env=(("NUMBER", str(number)),)) as sandbox:
            open_now += 1
            most = max(most, open_now)
            if open_now == 2:
                two_are_open.set()
            await asyncio.wait_for(two_are_open.wait(), 60)
            answer = await sandbox.exec("echo $NUMBER")
            open_now -= 1
            return answer.stdout

    assert await asyncio.gather(*map(use, range(5))) == [f"{number}\n" for number in range(5)]
    assert most == 2
