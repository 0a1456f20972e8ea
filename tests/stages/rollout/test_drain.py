"""Told to stop, or near the end of its job, a rollout begins nothing more and waits for what it can finish."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slime_stages import drain
from slime_stages.drain import Drained, drain_reason, install_drain, made_progress
from slime_stages.errors import DataError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.run_stage import result_of
from slime_stages.launch.start_run import start_run
from slime_stages.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.sample_table import read_samples
from slime_stages.serving.served import Served
from slime_stages.slurm.requeue import progress_of
from slime_stages.stage import Stage, StageCall
from stages.rollout import admission
from stages.rollout.admission import Admission, Deadline
from stages.rollout.judging import Verdict
from tests.slime_stages.config.settings import resolved


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers as in a stage, in a process that nobody has told to stop yet."""
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    install_drain()
    yield
    for number, handler in drain._drain.handlers.items():
        signal.signal(number, handler)


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def give_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What is left after a signal."""
    monkeypatch.setattr(admission, "drain_seconds", lambda: seconds)


class EachGroup:
    """Work that wants every group, once."""

    def __init__(self, groups: list[list[Sample]], recorded: list[int]) -> None:
        self.waiting, self.count = list(groups), len(groups)
        self.recorded, self.taken = recorded, list[list[Sample]]()

    def next(self) -> list[Sample] | None:
        return self.waiting.pop(0) if self.waiting else None

    def record(self, group: list[Sample]) -> None:
        self.recorded.append(group[0].group_index or 0)

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
    end = time.time() + admission.EXIT_SECONDS + 1.0
    groups = Groups(dict.fromkeys(range(20), 0.3), room=1, job_end=end)

    with pytest.raises(Drained, match="the job ends at"):
        groups.run()

    assert groups.begun == groups.recorded
    assert 1 <= len(groups.recorded) <= 3
    assert time.time() < end - admission.EXIT_SECONDS


def test_what_runs_when_only_the_time_to_leave_is_left_is_given_up() -> None:
    end = time.time() + admission.EXIT_SECONDS + 0.5
    groups = Groups({0: 0.1, 1: 60.0}, job_end=end)

    with pytest.raises(Drained, match="the job ends at"):
        groups.run()

    assert groups.recorded == [0]
    assert time.time() < end - 10


def test_the_longest_of_20_groups_is_not_counted_with() -> None:
    def deadline(left: float) -> Deadline:
        made = Deadline(job_end=time.time() + admission.EXIT_SECONDS + left, group_count=20)
        for seconds in range(1, 21):
            made.note(100.0 * seconds, 0.0)
        return made

    assert deadline(1910).allows_another()
    assert not deadline(1890).allows_another()


def test_time_to_write_the_shard_is_kept_by_what_the_journal_took() -> None:
    deadline = Deadline(job_end=1000.0, group_count=10)
    deadline.note(5.0, 1.0)
    deadline.note(5.0, 3.0)  # 2 s a group: 20 s for all, and as much again to be safe

    assert deadline.stop_time == 1000 - admission.EXIT_SECONDS - 40


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


ASKED: list[int] = []
SIGNAL_AFTER: list[int] = []
"""The number of samples after which the process is told to stop."""


async def counting(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Answers one sample at a time, in the order of the plan."""
    ASKED.append(sample.index or 0)
    sample.append_response_tokens(None, tokens=[5], log_probs=[-1.0], text="x")
    sample.status = Status.COMPLETED
    if len(ASKED) in SIGNAL_AFTER:
        send()
    await asyncio.sleep(0.01)
    return sample


@pytest.fixture
def call(tiny_model: Path, tiny_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageCall]:
    """A rollout of 4 prompts × 2 samples by `counting`, two samples at a time; no engine is asked."""
    config = resolved(
        hf_checkpoint=str(tiny_model),
        prompt_data=[str(tiny_prompts)],
        input_key="prompt",
        apply_chat_template=True,
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        rollout_max_response_len=4,
        sglang_server_concurrency=1,
        custom_generate_function_path="tests.stages.rollout.test_drain.counting",
    ).config
    run = RunDir(tmp_path / "run")
    start_run(run, config)
    ensure_plan(run, 0)

    @contextmanager
    def no_engine(stage: Stage) -> Iterator[Served]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield Served(urls=(f"http://127.0.0.1:{server.getsockname()[1]}",), engine_count=1)

    monkeypatch.setattr("stages.rollout.run.ready_engines", no_engine)
    ASKED.clear()
    SIGNAL_AFTER[:] = [3]
    yield StageCall(stage="rollout", run=run.root, iteration=0, shard=0)
    SIGNAL_AFTER.clear()


def test_a_drained_rollout_says_how_far_it_got_and_the_next_attempt_asks_the_rest(
    call: StageCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_seconds(monkeypatch, 30)
    run = RunDir(call.run)

    first = result_of(call)
    count, asked = progress_of(run, call), list(ASKED)
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    second = result_of(call)

    assert first.exit_code == 75
    assert first.message == (
        f"drained (SIGTERM): {count} of 4 groups are in the journal; the same command goes on there"
    )
    assert first.hint == f"slime-stages rollout --run {call.run} --iter 0 --shard 0"
    assert 1 <= count <= 3
    assert second.exit_code == 0
    assert len(asked) == 2 * count
    assert [*ASKED] == list(range(8))
    assert [sample.index for sample in read_samples(run.shard_path("rollout", 0, 0, 1))] == list(range(8))
    assert progress_of(run, call) == 0


def test_a_drain_leaves_what_the_next_attempt_needs_and_no_more(
    call: StageCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_seconds(monkeypatch, 30)

    result_of(call)

    folder = RunDir(call.run).stage_path("rollout", 0)
    assert [path.name for path in folder.iterdir()] == [".journal-00000"]
    assert made_progress()
    assert drain_reason() == "SIGTERM"


def test_a_process_that_was_told_to_stop_begins_no_other_call(call: StageCall) -> None:
    drain.begin_drain("SIGTERM")

    result = result_of(call)

    assert (result.exit_code, ASKED) == (75, [])
    assert result.message == "drained (SIGTERM): what is committed stays, the same command does the rest"
