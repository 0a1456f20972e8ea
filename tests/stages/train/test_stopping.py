"""When training stops between two steps, and which of a node's GPUs a task takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from slime_stages import drain
from slime_stages.errors import UsageError
from slime_stages.slurm.limits import job_end_time
from stages.train.megatron import parallel
from stages.train.stopping import Stopping


@pytest.fixture
def job_of_600_seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 600))
    job_end_time.cache_clear()
    parallel.initialize()
    yield
    job_end_time.cache_clear()


@pytest.mark.usefixtures("job_of_600_seconds")
def test_a_step_that_may_not_fit_into_the_jobs_time_is_not_begun_but_the_first_one_is() -> None:
    fits, does_not = Stopping(save_seconds=300.0), Stopping(save_seconds=590.0)

    assert [fits(), fits(), fits()] == [False, False, False]
    assert [does_not(), does_not()] == [False, True]
    assert drain.drain_reason() == "the job's time limit is near"


@pytest.mark.usefixtures("job_of_600_seconds")
def test_a_signal_stops_before_the_next_step_the_first_one_too() -> None:
    drain.begin_drain("SIGTERM")

    assert Stopping(save_seconds=0.0)()


def test_a_task_takes_the_only_gpu_that_it_sees_or_the_one_of_its_number() -> None:
    assert parallel.device_index(3, device_count=1) == 0
    assert [parallel.device_index(rank, device_count=2) for rank in (0, 1)] == [0, 1]
    with pytest.raises(UsageError, match="process 2 of its node sees 2 GPUs only"):
        parallel.device_index(2, device_count=2)
