"""Holding processes to limits, with processes that sleep."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from slime_stages.isolation.limits import hold_to_limits
from tests.slime_stages.agent.sandbox.local_sandboxes import wait_until


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def living(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.pid for process in processes if process.poll() is None]


def test_processes_within_their_limits_live_on(sleepers: list[subprocess.Popen[bytes]]) -> None:
    said: list[str] = []

    assert hold_to_limits(lambda: living(sleepers), process_count=3, memory_bytes=1 << 30, say=said.append)

    assert len(living(sleepers)) == 3
    assert said == []


def test_the_largest_is_killed_for_too_much_memory(sleepers: list[subprocess.Popen[bytes]]) -> None:
    said: list[str] = []

    assert hold_to_limits(lambda: living(sleepers), process_count=3, memory_bytes=4096, say=said.append)

    assert wait_until(lambda: len(living(sleepers)) == 2)
    assert "MiB of memory, the limit is 0: the largest process is killed" in said[0]


def test_all_are_killed_where_there_are_too_many(sleepers: list[subprocess.Popen[bytes]]) -> None:
    said: list[str] = []

    assert hold_to_limits(lambda: living(sleepers), process_count=2, memory_bytes=None, say=said.append)

    assert [process.wait() for process in sleepers] == [-9, -9, -9]
    assert said == ["more than 2 processes: all killed"]
