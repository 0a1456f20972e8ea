"""A job that drains itself on a real SLURM: when it ends, back into the queue under its id, and not against anybody."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.jobs import submit, wait_for, wait_for_state

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from slime_stages.drain import Drained, count_progress, install_drain, listening
from slime_stages.slurm.limits import drain_seconds, job_end_time
from slime_stages.slurm.requeue import requeue_self

def tell(*words):
    with open(sys.argv[1], "a") as file:
        print(*words, file=file)

install_drain()
if os.environ.get("SLURM_RESTART_COUNT"):
    tell("again", os.environ["SLURM_RESTART_COUNT"])
    sys.exit(0)
count_progress(int(sys.argv[2]))
tell("begun", job_end_time())
try:
    time.sleep(600)
except Drained as drained:
    tell("drained", drained.reason, drain_seconds())
    with listening(lambda: None):
        tell("requeued", requeue_self())
        time.sleep(float(sys.argv[3]))
sys.exit(75)
"""


class Job:
    """A job of `PROGRAM`, and what it has told so far."""

    def __init__(self, cluster: Cluster, folder: Path, *options: str, progress: int = 1, stay_seconds: int = 0) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self._told = folder / "told"
        words = f"env PYTHONPATH={ROOT} {sys.executable} {program} {self._told} {progress} {stay_seconds}"
        self.id = submit(cluster, f"srun --nodes=1 --ntasks=1 {words}", "--requeue", *options)

    def told(self) -> list[list[str]]:
        return [line.split() for line in self._told.read_text().splitlines()] if self._told.exists() else []

    def wait_for(self, word: str, seconds: float = 60) -> list[str]:
        """What it tells under a word."""
        wait_for(lambda: any(line[0] == word for line in self.told()), seconds=seconds)
        return next(line[1:] for line in self.told() if line[0] == word)


def test_a_drained_task_of_an_array_runs_again_under_its_id_and_its_dependents_wait(
    slurm: Cluster, tmp_path: Path
) -> None:
    job = Job(slurm, tmp_path, "--array=3", "--time=10", stay_seconds=30)
    dependent = submit(slurm, f"wc -l < {tmp_path}/told > {tmp_path}/counted", f"--dependency=afterany:{job.id}")
    [end] = job.wait_for("begun")

    slurm.run("scancel", "--signal=USR2", f"{job.id}_3")

    assert float(end) == pytest.approx(time.time() + 600, abs=60)
    assert job.wait_for("drained") == ["SIGUSR2", "300.0"]
    assert job.wait_for("requeued") == ["True"]
    assert job.wait_for("again") == ["1"]
    wait_for_state(slurm, f"{job.id}_3", "COMPLETED")
    wait_for_state(slurm, dependent, "COMPLETED", seconds=60)
    assert int((tmp_path / "counted").read_text()) == len(job.told())


def test_a_job_without_a_limit_has_no_end(slurm: Cluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "--time=UNLIMITED")

    assert job.wait_for("begun") == ["None"]


def test_a_cancelled_job_stays_cancelled(slurm: Cluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path)
    job.wait_for("begun")

    slurm.run("scancel", job.id)

    assert job.wait_for("drained") == ["SIGTERM", "5.0"]
    assert job.wait_for("requeued") == ["False"]
    wait_for_state(slurm, job.id, "CANCELLED")


def test_a_job_that_may_not_be_requeued_is_left_to_the_chain(slurm: Cluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "--no-requeue")
    job.wait_for("begun")

    slurm.run("scancel", "--signal=TERM", job.id)

    assert job.wait_for("requeued") == ["False"]
    wait_for_state(slurm, job.id, "FAILED")


def test_a_preempted_job_is_told_what_it_has_left(slurm: Cluster, tmp_path: Path) -> None:
    everything = ("--nodes=4", "--exclusive")
    job = Job(slurm, tmp_path, "--partition=low", "--signal=USR2@1", *everything, progress=0)
    job.wait_for("begun")

    high = submit(slurm, "true", *everything)

    reason, seconds = job.wait_for("drained")
    assert (reason, float(seconds)) == ("SIGUSR2", 5.0)
    wait_for_state(slurm, high, "COMPLETED", seconds=60)
    assert job.wait_for("again") == ["1"]
