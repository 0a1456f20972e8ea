"""Two real engines behind the real router: sessions stay where they are, and a dead engine costs nothing but time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from slime_stages.config import Config
from slime_stages.errors import UsageError
from slime_stages.serving.client import EngineClient, GenerateOutput
from slime_stages.serving.fleet import Fleet
from slime_stages.serving.layout import layout_of
from slime_stages.serving.router import Router
from tests.fixtures.tiny_model import VOCABULARY_SIZE, make_tiny_model
from tests.slime_stages.serving.settings import config_of

WORDS = ("--rollout-num-engines", "2", "--router-policy", "consistent_hashing", "--rollout-health-check-interval", "2")
PROMPT_LENGTH = 40

OWNER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.slime_stages.serving.test_fleet import WORDS, fleet_of
from tests.slime_stages.serving.settings import config_of

model, logs = Path(sys.argv[1]), Path(sys.argv[2])
with fleet_of(config_of(*WORDS, checkpoint=model), model, logs) as fleet:
    print("serving", flush=True)
    time.sleep(600)
"""


def fleet_of(config: Config, model: Path, logs: Path) -> Fleet:
    return Fleet(
        config=config, layout=layout_of(config, ()), weights=model, label="0", log=lambda name: logs / f"{name}.log"
    )


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = config_of(*WORDS, checkpoint=tiny_model)
    with fleet_of(config, tiny_model, tmp_path_factory.mktemp("logs")) as fleet:
        yield fleet


def prompt_of(session: int) -> list[int]:
    """No two sessions begin alike."""
    return [5 + session, *range(10, 10 + PROMPT_LENGTH - 1)]


async def answer(client: EngineClient, session: int, tokens: list[int], length: int, turn: int = 0) -> GenerateOutput:
    params = {"max_new_tokens": length, "ignore_eos": True, "sampling_seed": session}
    return await client.generate(tokens, params, rid=f"{session}-{turn}-{time.time_ns()}", routing_key=f"s{session}")


async def answers(url: str, length: int, *, count: int = 24) -> list[GenerateOutput]:
    async with EngineClient(url, vocab_size=VOCABULARY_SIZE, timeout_seconds=240) as client:
        return await asyncio.gather(*(answer(client, number, prompt_of(number), length) for number in range(count)))


def server_pid(fleet: Fleet, place: int) -> int:
    """Of the server itself, below its guard."""
    return int(psutil.Process(fleet.members[place].engine.pid).children()[0].pid)


async def test_the_next_turn_of_a_session_finds_its_prefix_in_the_engines_cache(fleet: Fleet) -> None:
    async with EngineClient(fleet.served().urls[0], vocab_size=VOCABULARY_SIZE, timeout_seconds=120) as client:
        first = [await answer(client, session, prompt_of(session), 4) for session in range(100, 112)]
        second = [
            await answer(client, session, [*prompt_of(session), *output.output_ids, 7], 4, turn=1)
            for session, output in zip(range(100, 112), first, strict=True)
        ]

    assert [output.meta_info["cached_tokens"] for output in first] == [0] * 12
    assert all(output.meta_info["cached_tokens"] >= PROMPT_LENGTH for output in second)


async def test_an_engine_killed_amid_its_requests_costs_no_answer(fleet: Fleet) -> None:
    url = fleet.served().urls[0]
    undisturbed = await answers(url, 200)
    addresses = fleet.served().engine_urls

    asking = asyncio.create_task(answers(url, 200))
    await until(lambda: fleet.members[0].engine.request_count() > 0)
    os.kill(server_pid(fleet, 0), signal.SIGKILL)
    disturbed = await asking

    assert [output.output_ids for output in disturbed] == [output.output_ids for output in undisturbed]
    assert {output.finish_reason for output in disturbed} == {"length"}

    await until(lambda: not fleet.members[0].is_restarting and fleet.members[0].engine.is_alive())
    router = fleet.routers["actor"]
    assert fleet.served().engine_urls == addresses
    assert {worker["status"] for worker in router.workers().values()} == {"ready"}
    assert set(router.workers()) == set(addresses)
    assert fleet.members[0].engine.version() == "0"


@pytest.mark.slow
async def test_an_engine_comes_back_with_the_weights_of_the_others(fleet: Fleet, tmp_path: Path) -> None:
    newer = make_tiny_model(tmp_path / "newer", seed=1)
    for member in fleet.members:
        member.engine.update_weights(newer, "1")

    os.kill(server_pid(fleet, 1), signal.SIGKILL)
    await until(lambda: fleet.members[1].is_restarting)
    await until(lambda: not fleet.members[1].is_restarting)

    assert [member.engine.version() for member in fleet.members] == ["1", "1"]
    assert {output.weight_version for output in await answers(fleet.served().urls[0], 2)} == {"1"}


async def test_a_router_that_dies_comes_back_at_its_address(fleet: Fleet) -> None:
    url = fleet.served().urls[0]
    router = fleet.routers["actor"]
    assert isinstance(router, Router)
    os.kill(psutil.Process(router.pid).children()[0].pid, signal.SIGKILL)

    outputs = await answers(url, 2, count=4)

    assert len(outputs) == 4
    assert fleet.served().urls == (url,)


@pytest.mark.slow
def test_engines_that_do_not_start_end_the_others(tiny_model: Path, tmp_path: Path) -> None:
    config = config_of(*WORDS, "--sglang-schedule-policy", "fifo", checkpoint=tiny_model)
    fleet = fleet_of(config, tiny_model, tmp_path)

    with pytest.raises(UsageError, match="argument --schedule-policy: invalid choice: 'fifo'"):
        fleet.start()

    assert not any(member.engine.is_alive() for member in fleet.members)
    router = fleet.routers["actor"]
    assert isinstance(router, Router)
    assert not router.is_alive()


@pytest.mark.slow
def test_nothing_of_a_fleet_is_left_when_its_owner_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", OWNER, str(tiny_model), str(tmp_path), root]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith("serving")
    processes = psutil.Process(owner.pid).children(recursive=True)

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(processes, timeout=15)

    assert len(processes) >= 6  # three guards, two engines and a router
    assert alive == []


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
