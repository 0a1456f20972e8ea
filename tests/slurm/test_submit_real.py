"""Submissions to a real SLURM: what sbatch makes of our scripts, and what is left on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import UsageError
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.header import Header, read_header, with_overrides
from slime_stages.slurm.jobs import Attempt, claim_attempt, read_end
from slime_stages.slurm.submission import Submission
from slime_stages.slurm.submit import (
    cancel_jobs,
    find_submitted,
    job_name,
    set_dependency,
    split_shards,
    submit_attempt,
)
from tests.e2e.runs import new_run
from tests.fakes.rollouts import fake_rollout
from tests.slime_stages.slurm.reward_run import make_reward_run
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return make_reward_run(tmp_path)


@pytest.fixture
def header(tmp_path: Path) -> Header:
    return write_header(tmp_path, "")


def write_header(folder: Path, more: str, setup: str = "") -> Header:
    path = folder / "reward.sbatch"
    path.write_text(
        "#!/bin/bash\n#SBATCH --cpus-per-task=1 --mem=1000M --time=10\n"
        f'{more}\n{setup}\nexec {sys.executable} -m stages.reward "$@"\n'
    )
    return read_header(path, "reward")


def claimed(run: RunDir, *shards: int | None, stage: str = "reward", after: int = 0) -> Attempt:
    attempt = claim_attempt(run, stage, 0, shards=shards, after=after)
    assert attempt is not None
    return attempt


def submit(run: RunDir, attempt: Attempt, header: Header, **options: Any) -> Attempt:
    return submit_attempt(Submission(run=run, attempt=attempt, header=header, **options))


def waiting(what: str, seconds: float = 90.0) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.2)
    raise AssertionError(f"{what} has not come within {seconds:.0f} s")


def ended(cluster: Cluster, attempt: Attempt) -> list[str]:
    """The state and the exit code of each task, once all have ended: `COMPLETED 0:0`."""
    shown: list[str] = []
    for _ in waiting(f"the end of {attempt.job_id}"):
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in jobs(cluster, attempt)]
        shown = [f"{each['JobState']} {each['ExitCode']}" for each in fields]
        if shown and all(state.startswith(ENDED) for state in shown):
            break
    return shown


def jobs(cluster: Cluster, attempt: Attempt) -> list[str]:
    return cluster.run("scontrol", "--oneliner", "show", "job", str(attempt.job_id)).splitlines()


def test_an_array_of_two_tasks_runs_and_each_tells_its_end(slurm: Cluster, run: RunDir, header: Header) -> None:
    attempt = submit(run, claimed(run, 1, 0), header)

    assert ended(slurm, attempt) == ["COMPLETED 0:0"] * 2
    for shard in (0, 1):
        end = read_end(attempt, shard)
        assert end is not None
        assert (end.exit_code, end.job_id) == (0, attempt.task_id(shard))
        stdout, stderr = attempt.log_paths(shard)
        assert stdout.read_text() == f"{run.manifest_path('reward', 0, shard=shard, count=2)}\n"
        assert "user code prints" in stderr.read_text()
    names = {path.name.split("_")[0] for path in attempt.folder.iterdir()}
    assert names == {"job.json", "script.sbatch", "command.sh", "end-00000.json", "end-00001.json", attempt.job_id}


def test_slurm_sees_our_exit_code(slurm: Cluster, run: RunDir, header: Header) -> None:
    run.shard_path("rollout", 0, 0, 2).unlink()

    attempt = submit(run, claimed(run, 0), header)

    end_states = ended(slurm, attempt)
    end = read_end(attempt, 0)
    assert end is not None
    assert end_states == [f"FAILED {end.exit_code}:0"]
    assert not attempt.is_array


def test_a_job_of_four_processes_on_two_nodes_tells_one_end(slurm: Cluster, run: RunDir, tmp_path: Path) -> None:
    path = tmp_path / "train.sbatch"
    options = "#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --mem=3000M --time=10"
    path.write_text(f'#!/bin/bash\n{options}\nexec srun {sys.executable} -m stages.train "$@"\n')

    attempt = submit(run, claimed(run, None, stage="train"), read_header(path, "train"))

    assert ended(slurm, attempt)[0].startswith("FAILED"), "the rewards are missing"
    end = read_end(attempt, None)
    assert end is not None
    assert (end.exit_code, end.job_id) == (66, attempt.job_id)
    assert len(list(attempt.folder.glob(f"{attempt.job_id}_[0-3]_log.err"))) == 4


def test_a_set_up_line_that_fails_fails_the_job(slurm: Cluster, run: RunDir, tmp_path: Path) -> None:
    attempt = submit(run, claimed(run, 0), write_header(tmp_path, "", "source nowhere/activate"))

    assert ended(slurm, attempt) == ["FAILED 1:0"]
    assert "the set-up of reward failed" in attempt.log_paths(0)[1].read_text()
    assert read_end(attempt, 0) is None


def test_a_job_submits_another_as_if_from_outside(slurm: Cluster, run: RunDir, tmp_path: Path) -> None:
    header = write_header(tmp_path, "#SBATCH --comment=mine", f"env > {tmp_path}/inner")
    attempt = claimed(run, 0)
    (tmp_path / "nested.py").write_text(
        "from pathlib import Path\n"
        "from slime_stages.run.rundir import RunDir\n"
        "from slime_stages.slurm.header import read_header\n"
        "from slime_stages.slurm.jobs import read_attempt\n"
        "from slime_stages.slurm.submission import Submission\n"
        "from slime_stages.slurm.submit import submit_attempt\n"
        f"run, attempt = RunDir(Path({str(run.root)!r})), read_attempt(Path({str(attempt.folder)!r}))\n"
        f"header = read_header(Path({str(header.path)!r}), 'reward')\n"
        "submit_attempt(Submission(run=run, attempt=attempt, header=header))\n"
    )
    outer = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=300M", "--cpus-per-task=1"]

    slurm.run(*outer, f"--wrap=srun --ntasks=1 --overlap {sys.executable} nested.py")

    for _ in waiting("the inner job's end"):
        if read_end(attempt, 0) is not None:
            break
    inner = dict(line.split("=", 1) for line in (tmp_path / "inner").read_text().splitlines() if "=" in line)
    assert inner["SLURM_JOB_NUM_NODES"] == "1"
    assert inner.get("SLURM_NTASKS", "1") == "1"
    assert inner["SLURM_MEM_PER_NODE"] == "1000"
    assert "SLURM_MEM_PER_CPU" not in inner
    assert find_submitted(run, attempt) == inner["SLURM_JOB_ID"]


def test_an_unknown_partition_is_told_with_the_file_and_sbatchs_words(
    slurm: Cluster, run: RunDir, tmp_path: Path
) -> None:
    attempt = claimed(run, 0, 1)

    with pytest.raises(UsageError, match=r"reward\.sbatch:3: sbatch refuses reward's job: .*partition.*nowhere"):
        submit(run, attempt, write_header(tmp_path, "#SBATCH -p nowhere"))

    assert not attempt.folder.exists()
    assert slurm.run("squeue", "--noheader", f"--name={job_name(run)}") == ""


def test_an_option_that_sbatch_does_not_know_is_told_with_its_line(slurm: Cluster, run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reward\.sbatch:3: .*--frobnicate"):
        submit(run, claimed(run, 0), write_header(tmp_path, "#SBATCH --frobnicate=1"))


def test_an_account_that_one_is_not_in_is_told_with_its_line(slurm: Cluster, run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--slurm-account: sbatch refuses reward's job: .*[Aa]ccount"):
        submit(run, claimed(run, 0), with_overrides(write_header(tmp_path, ""), {"account": "somebody"}))


def test_a_controller_that_is_away_for_20_seconds_gets_one_job(slurm: Cluster, run: RunDir, header: Header) -> None:
    slurm.stop_controller()
    back = threading.Timer(20, slurm.start_controller)
    back.start()

    attempt = submit(run, claimed(run, 0, 1), header)

    back.join()
    assert ended(slurm, attempt) == ["COMPLETED 0:0"] * 2
    names = slurm.run("squeue", "--noheader", "--states=all", f"--name={job_name(run)}", "--format=%F")
    assert set(names.split()) == {attempt.job_id}


def test_a_job_that_was_taken_although_the_answer_was_lost_is_the_only_one(
    slurm: Cluster, run: RunDir, header: Header, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = slurm.daemons.pid("slurmctld")
    assert controller is not None
    os.kill(controller, signal.SIGSTOP)  # it has the request in its socket, and takes it when it wakes
    threading.Timer(14, os.kill, (controller, signal.SIGCONT)).start()

    attempt = submit(run, claimed(run, 0), header)

    assert "sbatch got no answer: " in capsys.readouterr().err
    assert ended(slurm, attempt) == ["COMPLETED 0:0"]
    names = slurm.run("squeue", "--noheader", "--states=all", f"--name={job_name(run)}", "--format=%F")
    assert names.split() == [attempt.job_id]


def test_a_job_that_is_put_back_into_the_queue_keeps_what_it_printed(
    slurm: Cluster, run: RunDir, tmp_path: Path
) -> None:
    (tmp_path / "SLOW").touch()
    attempt = submit(run, claimed(run, 0), write_header(tmp_path, "", 'echo "set up" >&2'))
    for _ in waiting("the task"):
        if (tmp_path / "STARTED").exists():
            break

    (tmp_path / "SLOW").unlink()
    slurm.run("scontrol", "requeue", str(attempt.job_id))

    assert ended(slurm, attempt) == ["COMPLETED 0:0"]
    assert attempt.log_paths(0)[1].read_text().count("set up\n") == 2
    end = read_end(attempt, 0)
    assert end is not None
    assert (end.exit_code, end.restarts) == (0, 1)


def test_a_script_runs_by_hand(
    slurm: Cluster, tmp_path: Path, tiny_model: Path, tiny_prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None)
    fake_rollout(run, 0)
    header = write_header(tmp_path, "")
    words = ["sbatch", "--output=log", str(header.path), "--run", "run", "--iter", "0", "--shard", "1"]

    subprocess.run(words, check=True, capture_output=True, timeout=60, cwd=tmp_path)

    manifest = run.manifest_path("reward", 0, shard=1, count=2)
    for _ in waiting("the manifest"):
        if manifest.exists() and not slurm.run("squeue", "--noheader"):
            break
    assert (tmp_path / "log").read_text().splitlines()[-1] == str(manifest)


def test_more_shards_than_an_array_may_have_are_several_arrays(slurm: Cluster, run: RunDir, header: Header) -> None:
    held = with_overrides(header, {"hold": True})
    parts = split_shards(range(1002), 1001)

    attempts = [
        submit(run, claimed(run, *part, after=number), held, array_parallelism=7) for number, part in enumerate(parts)
    ]

    assert [attempt.is_array for attempt in attempts] == [True, False]
    assert attempts[0].task_id(1000) == f"{attempts[0].job_id}_1000"
    queue = slurm.run("squeue", "--noheader", "--format=%i", f"--name={job_name(run)}").split()
    assert sorted(queue) == sorted([f"{attempts[0].job_id}_[0-1000%7]", attempts[1].job_id])


def test_dependencies_of_a_pending_job_can_be_changed_and_jobs_cancelled(
    slurm: Cluster, run: RunDir, header: Header
) -> None:
    held = with_overrides(header, {"hold": True})
    first = submit(run, claimed(run, 0), held)
    second = submit(run, claimed(run, 1, after=1), header, dependencies=[str(first.job_id)])
    third = submit(run, claimed(run, 1, after=2), held)

    assert "Dependency=afterany:" + str(first.job_id) in jobs(slurm, second)[0]
    assert set_dependency(str(second.job_id), [str(first.job_id), str(third.job_id)])
    assert f"afterany:{third.job_id}" in jobs(slurm, second)[0]

    cancel_jobs([str(first.job_id), str(third.job_id)])
    assert ended(slurm, second) == ["COMPLETED 0:0"]
    assert not set_dependency(str(second.job_id), [str(first.job_id)])
    cancel_jobs([str(first.job_id), str(second.job_id)])
