from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.launch import cancel as module
from slime_stages.launch.cancel import cancel
from slime_stages.launch.chain_state import Chain, read_chain, write_chain
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.listing import JobInfo
from tests.fakes.commands import FakeCommands
from tests.slime_stages.launch.jobs_on_disk import submitted


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    return FakeCommands(tmp_path / "bin").install(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, slurm: FakeCommands) -> RunDir:
    """Jobs 100 (rollout 0, two tasks), 101 (train 0), 102 (rollout 1) and 103, which the disk does not know."""
    run = RunDir(tmp_path / "run")
    run.create()
    write_chain(run, Chain(target=3, sbatch_folder="/sbatch"))
    submitted(run, "rollout", 0, "100", 0, 1)
    submitted(run, "train", 0, "101")
    submitted(run, "rollout", 1, "102", 0)
    slurm.say(
        JobInfo(job_id="100_0", state="COMPLETING"),
        JobInfo(job_id="100_1", state="RUNNING"),
        JobInfo(job_id="101", state="PENDING"),
        JobInfo(job_id="102", state="PENDING"),
        JobInfo(job_id="103", state="PENDING"),
        JobInfo(job_id="99", state="COMPLETED"),
    )
    return run


def test_all_jobs_are_cancelled_and_the_chain_stops_first(run: RunDir, slurm: FakeCommands) -> None:
    assert cancel(run) == 4

    assert slurm.calls("scancel") == ["scancel 100 101 102 103"]
    chain = read_chain(run)
    assert chain is not None
    assert (chain.stopped, chain.advice) == (
        "all jobs cancelled by `slime-stages cancel`",
        f"slime-stages iter --n 0 --executor slurm --run {run.root}",
    )


@pytest.mark.parametrize(
    ("stage", "iteration", "jobs", "count"),
    [("rollout", None, "100 102", 2), (None, 0, "100 101", 2), ("train", 0, "101", 1)],
)
def test_jobs_of_a_stage_or_an_iteration_are_cancelled_alone(
    run: RunDir, slurm: FakeCommands, stage: str | None, iteration: int | None, jobs: str, count: int
) -> None:
    assert cancel(run, stage=stage, iteration=iteration) == count

    assert slurm.calls("scancel") == [f"scancel {jobs}"]


def test_without_jobs_there_is_nothing_to_cancel(run: RunDir, slurm: FakeCommands) -> None:
    slurm.say()

    assert cancel(run) == 0
    assert slurm.calls("scancel") == []


def test_without_slurm_it_is_refused(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match="there is no SLURM on this machine"):
        cancel(run)
    assert read_chain(run) == Chain(target=3, sbatch_folder="/sbatch")


def test_cancelling_the_engines_of_serve_lets_the_chain_go_on(run: RunDir, slurm: FakeCommands) -> None:
    submitted(run, "serve", 0, "103")

    assert cancel(run, stage="serve") == 1

    assert slurm.calls("scancel") == ["scancel 103"]
    chain = read_chain(run)
    assert chain is not None
    assert chain.stopped is None
