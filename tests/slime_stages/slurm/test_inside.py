"""What a task of a job does, without the job: the process that a script of sbatch starts, with SLURM's variables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, TaskEnd, claim_attempt, read_end, write_end
from slime_stages.slurm.peers import leave_after_first
from tests.slime_stages.slurm.reward_run import make_reward_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_reward_run(tmp_path)


def claimed(run: RunDir, stage: str, *shards: int | None) -> Attempt:
    attempt = claim_attempt(run, stage, 0, shards=shards, after=0)
    assert attempt is not None
    return attempt


def start(attempt: Attempt, folder: Path, **slurm: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slime_stages.slurm.inside", str(attempt.folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "81", "SLURMD_NODENAME": "node3", **slurm},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def array_task(task: int, **more: str) -> dict[str, str]:
    return {"SLURM_ARRAY_JOB_ID": "80", "SLURM_ARRAY_TASK_ID": str(task), **more}


def test_a_task_does_its_shard_prints_the_manifest_and_tells_its_end(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "reward", 1, 0)

    code, stdout, stderr = finished(start(attempt, tmp_path, **array_task(1, SLURM_RESTART_COUNT="2")))

    assert code == 0, stderr
    assert stdout == f"{run.manifest_path('reward', 0, shard=0, count=2)}\n"
    end = read_end(attempt, 0)
    assert end is not None
    assert (end.exit_code, end.node, end.job_id, end.restarts) == (0, "node3", "80_1", 2)
    assert read_end(attempt, 1) is None


def test_the_exit_code_and_the_message_are_the_stages(run: RunDir, tmp_path: Path) -> None:
    run.shard_path("rollout", 0, 0, 2).unlink()
    attempt = claimed(run, "reward", 0)

    code, stdout, stderr = finished(start(attempt, tmp_path))

    end = read_end(attempt, 0)
    assert end is not None
    assert code == end.exit_code != 0
    assert stdout == ""
    assert f"error: {end.message}" in stderr


def test_a_signal_drains_the_task_and_its_exit_code_is_75(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "SLOW").touch()
    attempt = claimed(run, "reward", 0)
    process = start(attempt, tmp_path)
    for _ in waiting():
        if (tmp_path / "STARTED").exists():
            break

    process.send_signal(signal.SIGUSR2)
    code, _, stderr = finished(process)

    end = read_end(attempt, 0)
    assert end is not None
    assert code == end.exit_code == 75, stderr
    assert "SIGUSR2" in end.message


def test_of_several_processes_the_first_one_tells_the_end(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "reward", 0)

    code, stdout, _ = finished(start(attempt, tmp_path, SLURM_PROCID="1", SLURM_NTASKS="2"))

    assert (code, stdout) == (0, "")
    assert read_end(attempt, 0) is None


def test_a_process_that_is_not_the_first_lets_that_one_finish_before_it_fails(run: RunDir, tmp_path: Path) -> None:
    run.shard_path("rollout", 0, 0, 2).write_bytes(b"damaged")
    attempt = claimed(run, "reward", 0)
    process = start(attempt, tmp_path, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("error: "):
        assert process.poll() is None

    time.sleep(0.5)
    assert process.poll() is None
    assert read_end(attempt, 0) is None

    process.terminate()  # as srun does when the first one has gone
    assert process.wait(timeout=30) == 65


def test_the_crash_of_one_process_is_the_end_of_all(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "reward", 0)
    crash = TaskEnd(exit_code=70, message="out of registers", job_id="81")
    assert leave_after_first(attempt, 0, crash) == 70
    run.shard_path("rollout", 0, 0, 2).write_bytes(b"damaged")

    code, _, _ = finished(start(attempt, tmp_path, SLURM_STEP_NUM_TASKS="2"))

    end = read_end(attempt, 0)
    assert end is not None
    assert (code, end.message) == (70, "out of registers")


def test_the_old_copy_of_a_task_does_not_overwrite_what_the_new_one_told(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "reward", 0)
    newer = TaskEnd(exit_code=70, message="the new one's", restarts=1)
    write_end(attempt, 0, newer)

    code, _, _ = finished(start(attempt, tmp_path, SLURM_RESTART_COUNT="0"))

    assert code == 0
    assert read_end(attempt, 0) == newer


def test_a_job_of_the_chain_looks_after_the_chain(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "chain", None)

    code, stdout, stderr = finished(start(attempt, tmp_path))

    assert (code, stdout) == (0, ""), stderr
    end = read_end(attempt, None)
    assert end is not None
    assert end.exit_code == 0


def test_a_chain_that_cannot_be_extended_is_told_and_fails_the_job(run: RunDir, tmp_path: Path) -> None:
    run.chain_path.write_text("{not whole")
    attempt = claimed(run, "chain", None)

    code, _, stderr = finished(start(attempt, tmp_path))

    end = read_end(attempt, None)
    assert end is not None
    assert code == 65
    assert "the chain was not extended" in stderr
    assert "chain.json" in end.extra["advance"]


def test_a_task_whose_record_is_torn_says_so(run: RunDir, tmp_path: Path) -> None:
    attempt = claimed(run, "reward", 0)
    (attempt.folder / "job.json").write_text("{")

    code, _, stderr = finished(start(attempt, tmp_path))

    assert code == 65
    assert "is no job's record" in stderr


def waiting(seconds: float = 60.0) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
    raise AssertionError(f"nothing has come within {seconds:.0f} s")
