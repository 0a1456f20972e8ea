from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slime_stages.rewards import wire
from slime_stages.rewards.clock import TaskClock
from slime_stages.rewards.supervisor import Supervisor
from slime_stages.rewards.tasks import PoolSettings
from slime_stages.rewards.worker_processes import Worker


class Sent:
    """The supervisor's side of a connection: the numbers of the tasks in each message."""

    def __init__(self) -> None:
        self.units: list[list[int]] = []

    def write(self, message: bytes) -> None:
        [(_, unit)] = wire.split(message)
        self.units.append([number for number, _ in wire.split(unit)])


def sent_early(last: range, left: range, waiting: range, *, tasks_per_worker: int = 100) -> list[list[int]]:
    """What a worker gets that has so much left of its last unit, while another unit waits."""

    async def look() -> list[list[int]]:
        sent: Any = Sent()
        settings = PoolSettings(
            args={}, workers=1, timeout_seconds=1.0, memory_bytes=None, tasks_per_worker=tasks_per_worker, requests=1
        )
        supervisor, reader = Supervisor(settings), asyncio.StreamReader()
        supervisor._units.put_nowait(b"".join(wire.pack(number, b"") for number in waiting))
        worker = Worker(pid=0, reader=reader, writer=sent, clock=TaskClock())
        supervisor._send_more(worker, dict.fromkeys(left, b""), len(last))
        return list(sent.units)

    return asyncio.run(look())


@pytest.mark.parametrize("waiting", [range(5, 9), range(5, 6)])
def test_a_worker_of_quick_tasks_has_the_next_unit_before_it_is_through(waiting: range) -> None:
    assert sent_early(last=range(1, 5), left=range(1, 5), waiting=waiting) == [list(waiting)]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        (range(5, 9), range(3, 9)),  # all of its last unit, and some of the one before
        (range(1, 2), range(1, 2)),  # a single task may hang, and others would be sooner
    ],
)
def test_it_has_no_more_than_that(last: range, left: range) -> None:
    assert sent_early(last=last, left=left, waiting=range(9, 13)) == []


def test_a_worker_that_is_to_be_replaced_gets_nothing_early() -> None:
    assert sent_early(last=range(1, 5), left=range(1, 5), waiting=range(5, 9), tasks_per_worker=4) == []
