"""Which groups are begun, waited for and given up: after a signal, and near the end of a job."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from slime_stages.drain import Drained, drain_reason
from slime_stages.errors import DataError
from slime_stages.sample import Sample, Status
from slime_stages.slurm.limits import EXIT_SECONDS
from stages.rollout import admission
from stages.rollout.admission import Admission
from stages.rollout.deadline import Deadline
from stages.rollout.judging import Verdict
from tests.stages.rollout.told_to_stop import give_seconds, send

pytestmark = pytest.mark.usefixtures("signals")


class EachGroup:
    """Work that wants every group, once."""

    def __init__(self, groups: list[list[Sample]], recorded: list[int]) -> None:
        self.waiting, self.count = list(groups), len(groups)
        self.recorded, self.taken = recorded, list[list[Sample]]()

    def next(self) -> list[Sample] | None:
        return self.waiting.pop(0) if self.waiting else None

    async def record(self, group: list[Sample]) -> float:
        self.recorded.append(group[0].group_index or 0)
        return 0.0

    def take(self, group: list[Sample], verdict: Verdict) -> None:
        self.taken.append(group)

    def leave(self, group: list[Sample]) -> None:
        pass

    def is_done(self) -> bool:
        return len(self.taken) == self.count

    def stop_time(self) -> float:
        return float("inf")


async def keep(group: list[Sample]) -> Verdict:
    return Verdict(keep=True)


@dataclass
class Groups:
    """Groups of one sample each, by number; `then` is called in the course of the one that it names."""

    seconds: dict[int, float]
    then: dict[int, Callable[[], Any]] = field(default_factory=dict)
    room: int = 100
    job_end: float | None = None
    is_served: bool = True
    begun: list[int] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)

    def run(self) -> list[list[Sample]]:
        """The groups in their order."""
        work = EachGroup([[Sample(group_index=number)] for number in self.seconds], self.recorded)
        running = Admission(
            room=self.room,
            deadline=Deadline(job_end=self.job_end, group_count=len(self.seconds)),
            work=work,
            ask=self._ask,
            judge=keep,
            is_served=self._is_served,
        )
        asyncio.run(running.run())
        return sorted(work.taken, key=lambda group: group[0].group_index or 0)

    async def _ask(self, group: list[Sample], answered: Callable[[], None]) -> list[Sample]:
        number = group[0].group_index or 0
        self.begun.append(number)
        await asyncio.sleep(self.seconds[number])
        group[0].status = Status.COMPLETED
        if number in self.then:
            made = self.then[number]()
            group[0].status = made or Status.COMPLETED
        answered()
        return group

    async def _is_served(self) -> bool:
        return self.is_served


def test_after_a_signal_nothing_is_begun_and_what_runs_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 30)
    groups = Groups({0: 0.0, 1: 0.3, 2: 0.0, 3: 0.0}, then={0: send}, room=2)

    with pytest.raises(Drained, match="SIGTERM"):
        groups.run()

    assert groups.begun == groups.recorded == [0, 1]


def test_a_shard_that_is_finished_in_time_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 30)
    groups = Groups({0: 0.0, 1: 0.3}, then={0: send})

    made = groups.run()

    assert [group[0].group_index for group in made] == [0, 1]
    assert drain_reason() == "SIGTERM"


def test_what_would_take_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 0.5)
    groups = Groups({0: 0.0, 1: 0.1, 2: 60.0}, then={0: send})
    started = time.monotonic()

    with pytest.raises(Drained):
        groups.run()

    assert groups.recorded == [0, 1]
    assert time.monotonic() - started < 10


def test_a_second_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 600)
    monkeypatch.setattr(admission, "SAME_SIGNAL_SECONDS", 0.1)
    groups = Groups({0: 0.0, 1: 0.4, 2: 60.0}, then={0: send, 1: send})
    started = time.monotonic()

    with pytest.raises(Drained):
        groups.run()

    assert groups.recorded == [0, 1]
    assert time.monotonic() - started < 10


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 30)
    groups = Groups({0: 0.0, 1: 0.1, 2: 0.5}, then={0: send, 1: lambda: send(signal.SIGUSR2)})

    assert len(groups.run()) == 3


def test_an_engine_that_the_signal_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 600)
    groups = Groups({0: 0.0, 1: 60.0}, then={0: send}, is_served=False)
    started = time.monotonic()

    with pytest.raises(Drained):
        groups.run()

    assert groups.recorded == [0]
    assert time.monotonic() - started < 10


def test_a_group_that_fails_after_the_signal_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 30)
    groups = Groups({0: 0.0, 1: 0.2, 2: 0.4}, then={0: send, 1: lambda: Status.FAILED})

    with pytest.raises(Drained):
        groups.run()

    assert groups.recorded == [0, 2]


def test_a_group_that_fails_by_itself_is_kept() -> None:
    groups = Groups({0: 0.0, 1: 0.1}, then={0: lambda: Status.FAILED})

    assert [group[0].status for group in groups.run()] == [Status.FAILED, Status.COMPLETED]
    assert groups.recorded == [0, 1]


def test_what_a_plug_in_answers_when_it_is_given_up_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    give_seconds(monkeypatch, 0.2)
    groups = Groups({0: 0.0, 1: 0.0}, then={0: send})
    ask = groups._ask

    async def stubborn(group: list[Sample], answered: Callable[[], None]) -> list[Sample]:
        if group[0].group_index == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return group
        return await ask(group, answered)

    monkeypatch.setattr(groups, "_ask", stubborn)

    with pytest.raises(Drained):
        groups.run()

    assert groups.recorded == [0]


def test_the_error_of_one_group_ends_the_rest_and_what_was_finished_is_kept() -> None:
    def refuse() -> None:
        raise DataError("a token beyond the vocabulary")

    groups = Groups({0: 0.05, 1: 0.05, 2: 0.05, 3: 60.0}, then={1: refuse, 0: lambda: time.sleep(0.2)})

    with pytest.raises(DataError, match="beyond the vocabulary"):
        groups.run()

    assert groups.recorded == [0, 2]


def test_near_the_end_of_its_job_it_begins_nothing_that_it_cannot_finish() -> None:
    end = time.time() + EXIT_SECONDS + 1.0
    groups = Groups(dict.fromkeys(range(20), 0.3), room=1, job_end=end)

    with pytest.raises(Drained, match="the job ends at"):
        groups.run()

    assert groups.begun == groups.recorded
    assert 1 <= len(groups.recorded) <= 3
    assert time.time() < end - EXIT_SECONDS


def test_what_runs_when_only_the_time_to_leave_is_left_is_given_up() -> None:
    end = time.time() + EXIT_SECONDS + 0.5
    groups = Groups({0: 0.1, 1: 60.0}, job_end=end)

    with pytest.raises(Drained, match="the job ends at"):
        groups.run()

    assert groups.recorded == [0]
    assert time.time() < end - 10


def test_the_longest_of_20_groups_is_not_counted_with() -> None:
    def deadline(left: float) -> Deadline:
        made = Deadline(job_end=time.time() + EXIT_SECONDS + left, group_count=20)
        for seconds in range(1, 21):
            made.note(100.0 * seconds, 0.0)
        return made

    assert deadline(1910).allows_another()
    assert not deadline(1890).allows_another()


def test_time_to_write_the_shard_is_kept_by_what_the_journal_took() -> None:
    deadline = Deadline(job_end=1000.0, group_count=10)
    deadline.note(5.0, 1.0)
    deadline.note(5.0, 3.0)  # 2 s a group: 20 s for all, and as much again to be safe

    assert deadline.stop_time == 1000 - EXIT_SECONDS - 40


def test_no_more_groups_are_begun_than_the_engines_take() -> None:
    in_flight, most = 0, 0

    async def ask(group: list[Sample], answered: Callable[[], None]) -> list[Sample]:
        nonlocal in_flight, most
        in_flight += len(group)
        most = max(most, in_flight)
        for _ in group:
            await asyncio.sleep(0.01)
            in_flight -= 1
            answered()
        return group

    work = EachGroup([[Sample(index=3 * place + k) for k in range(3)] for place in range(9)], [])
    running = Admission(
        room=6,
        deadline=Deadline(job_end=None, group_count=9),
        work=work,
        ask=ask,
        judge=keep,
        is_served=lambda: asyncio.sleep(0, True),
    )
    asyncio.run(running.run())

    made = sorted([sample.index or 0 for sample in group] for group in work.taken)
    assert made == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(9)]
    assert most in (6, 7, 8)  # a group begins as soon as one sample of those before is answered
