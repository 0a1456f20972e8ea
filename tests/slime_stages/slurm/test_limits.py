"""The end of this job's time: told by a variable, or asked for once; never an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime_stages import drain
from slime_stages.slurm import limits, requeue
from slime_stages.slurm.limits import drain_seconds, job_end_time, task_id
from slime_stages.slurm.requeue import requeue_self

FakeCommand = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside of SLURM, in a process that was not told to stop."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SQUEUE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    job_end_time.cache_clear()
    yield
    job_end_time.cache_clear()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCommand:
    """Puts a command first on the PATH; each call adds a line with its words to the file returned."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def put(name: str, script: str) -> Path:
        calls = tmp_path / f"{name}.calls"
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{script}\n')
        (tmp_path / name).chmod(0o755)
        return calls

    return put


def in_job(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in {"JOB_ID": "77", **variables}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def drained(reason: str = "SIGUSR2", progress: int = 1) -> None:
    drain.begin_drain(reason)
    drain.count_progress(progress)


def test_without_slurm_nobody_knows(command: FakeCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = command("squeue", "date +%s")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))  # of a shell that lives on after its job

    assert (task_id(), job_end_time(), drain_seconds()) == (None, None, 5.0)
    assert not calls.exists()


def test_the_variable_tells_without_a_query(monkeypatch: pytest.MonkeyPatch, command: FakeCommand) -> None:
    calls = command("squeue", "exit 1")
    end = int(time.time()) + 100
    in_job(monkeypatch, JOB_END_TIME=str(end))

    assert job_end_time() == end
    assert not calls.exists()


def test_otherwise_squeue_is_asked_once_for_this_task_alone(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand
) -> None:
    end = int(time.time()) + 100
    calls = command("squeue", f'test "$SLURM_TIME_FORMAT$SQUEUE_STATES" = %s && echo {end}')
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    in_job(monkeypatch, ARRAY_JOB_ID="70", ARRAY_TASK_ID="4")

    assert [job_end_time(), job_end_time()] == [end, end]
    assert calls.read_text().splitlines() == ["--noheader --jobs 70_4 --format %e"]


def test_a_time_in_words_is_local_time(monkeypatch: pytest.MonkeyPatch, command: FakeCommand) -> None:
    command("squeue", "echo 2040-01-01T00:00:00")
    in_job(monkeypatch)

    assert job_end_time() == time.mktime((2040, 1, 1, 0, 0, 0, 0, 0, -1))


@pytest.mark.parametrize("answer", ["echo UNLIMITED", "echo N/A", "echo NONE", "echo Unknown", "true", "exit 1"])
def test_a_job_without_an_end_or_an_answer_has_none(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand, answer: str
) -> None:
    command("squeue", answer)
    in_job(monkeypatch)

    assert job_end_time() is None


def test_an_end_that_is_past_is_another_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    in_job(monkeypatch, JOB_END_TIME=str(int(time.time()) - 100))

    assert job_end_time() is None


def test_a_controller_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, command: FakeCommand) -> None:
    command("squeue", "exec sleep 60")
    in_job(monkeypatch)
    monkeypatch.setattr(limits, "QUERY_TIMEOUT_SECONDS", 0.2)
    started = time.monotonic()

    assert job_end_time() is None
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("left", "seconds"), [(100, 85), (15, 5), (-10, 5), (86400, 300)])
def test_after_a_signal_the_end_is_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand, left: int, seconds: float
) -> None:
    in_job(monkeypatch, JOB_END_TIME=str(int(time.time()) + 7200))
    command("squeue", f"echo {time.time() + left}")

    assert job_end_time() is not None
    assert drain_seconds() == pytest.approx(seconds, abs=2)


def test_a_drained_job_goes_back_into_the_queue_under_its_id(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand
) -> None:
    in_job(monkeypatch, ARRAY_JOB_ID="70", ARRAY_TASK_ID="4", RESTART_COUNT="3")
    command("squeue", "echo RUNNING")
    calls = command("scontrol", "true")
    drained()

    assert requeue_self()
    assert calls.read_text().splitlines() == ["requeue 70_4"]


@pytest.mark.parametrize(
    ("reason", "progress", "seconds_left", "is_requeued"),
    [
        ("SIGTERM", 0, 7200, True),  # preempted
        ("SIGUSR2", 0, 100, False),  # the warning of the time limit, and nothing to go on from
        ("SIGUSR2", 1, 100, True),
        ("the job ends at 12:00:00", 0, 100, False),
        ("the job ends at 12:00:00", 1, 100, True),
        ("SIGINT", 1, 7200, False),  # somebody wants it to end
    ],
)
def test_a_job_that_would_get_no_further_is_left_to_the_chain(
    monkeypatch: pytest.MonkeyPatch,
    command: FakeCommand,
    reason: str,
    progress: int,
    seconds_left: int,
    is_requeued: bool,
) -> None:
    in_job(monkeypatch, JOB_END_TIME=str(int(time.time()) + seconds_left))
    command("squeue", "echo RUNNING")
    command("scontrol", "true")
    drained(reason, progress)

    assert requeue_self() == is_requeued


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        ({}, "COMPLETING"),  # cancelled: it must not come back
        ({}, ""),
        ({"RESTART_COUNT": str(requeue.MOST_RESTARTS)}, "RUNNING"),
        ({"PROCID": "1"}, "RUNNING"),
    ],
)
def test_who_is_being_ended_or_was_put_back_often_or_is_not_the_first_process_does_not_ask(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand, variables: dict[str, str], state: str
) -> None:
    in_job(monkeypatch, **variables)
    command("squeue", f"echo {state}")
    calls = command("scontrol", "true")
    drained()

    assert not requeue_self()
    assert not calls.exists()


def test_a_refusal_is_said_and_left_to_the_chain(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    in_job(monkeypatch)
    command("squeue", "echo RUNNING")
    command("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    drained()

    assert not requeue_self()
    assert (
        "job 77 was not put back into the queue: Requested operation is presently disabled" in capsys.readouterr().err
    )


def test_who_was_not_drained_or_runs_in_no_job_does_not_ask(
    monkeypatch: pytest.MonkeyPatch, command: FakeCommand
) -> None:
    command("squeue", "echo RUNNING")
    command("scontrol", "true")
    drained()
    assert not requeue_self()

    monkeypatch.setattr(drain, "_drain", drain._Drain())
    in_job(monkeypatch)
    assert not requeue_self()
