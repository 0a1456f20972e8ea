"""Training on two nodes with two tasks each, on a real SLURM: as one process does it, whatever stops it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.weights.outputs import check_outputs
from slime_stages.weights.partial import saved_steps
from tests.e2e.runs import copy_run, leftovers
from tests.slurm.cluster import Cluster
from tests.stages.train.attempts import KILL, TERM
from tests.stages.train.small_runs import make, run_to_train

ROOT = Path(__file__).parents[2]
JOB_SECONDS = 240
END_SECONDS = 60
"""For the tasks to notice, or for srun to end them: it gives them 30 s before it kills."""
MEANS = ("advantage", "log_prob_gap", "entropy", "clip_share", "trained_tokens", "raw_reward")
TRAIN = '-m stages.train --run "$RUN" --iter 0'
SIGNALLED = "-m tests.stages.train.attempts"


pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path) -> RunDir:
    """A run that wants two nodes with two trainer processes each, in pairs that share the layers' weights."""
    flags = {"actor_num_nodes": 2, "actor_num_gpus_per_node": 2, "tensor_model_parallel_size": 2}
    return run_to_train(tmp_path_factory.mktemp("multinode") / "run", tiny_model, tiny_prompts, **flags)


@pytest.fixture(scope="module")
def by_one_process(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path) -> RunDir:
    """The same samples, trained by one process."""
    run = run_to_train(tmp_path_factory.mktemp("one") / "run", tiny_model, tiny_prompts)
    make(run, "train", 0)
    return run


@pytest.fixture
def run(scored: RunDir, tmp_path: Path) -> RunDir:
    return copy_run(scored, tmp_path / "run")


def train_job(cluster: Cluster, run: RunDir, program: str, *, signal: tuple[int, int] = (-1, 0)) -> tuple[int, str]:
    """Submit the training, wait for its end; the job's exit code and log. `signal`: (task, number), after a step."""
    script, log = run.root.with_suffix(".sbatch"), run.root.with_suffix(".log")
    script.write_text(
        f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --mem=3500M --time=10 --output={log} --open-mode=append
export RUN={run.root} PYTHONPATH={ROOT} OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TASK={signal[0]} NUMBER={signal[1]}
exec srun --kill-on-bad-exit=1 {sys.executable} {program}
"""
    )
    words = ["sbatch", "--wait", "--parsable", str(script)]
    done = subprocess.run(
        words, env=cluster.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=JOB_SECONDS, check=False
    )
    return done.returncode, log.read_text()


def manifest_of(run: RunDir) -> Manifest:
    manifest = read_manifest(run.manifest_path("train", 0))
    check_outputs(run, manifest)
    return manifest


def test_four_tasks_on_two_nodes_are_drained_requeued_and_end_with_what_one_process_trains(
    slurm: Cluster, run: RunDir, by_one_process: RunDir
) -> None:
    code, log = train_job(slurm, run, SIGNALLED, signal=(3, TERM))
    assert code == 75, log
    assert saved_steps(run, 0) == 1
    code, log = train_job(slurm, run, TRAIN)
    assert code == 0, log

    assert log.count("train 0: goes on after step 1 of 3") == 1
    assert log.count("train/manifest.json\n") == 1
    assert manifest_of(run).metrics == pytest.approx(manifest_of(by_one_process).metrics, abs=1e-5)
    four, one = (pq.read_table(each.train_samples_path(0)).to_pydict() for each in (run, by_one_process))
    for name in MEANS:
        assert four[name] == pytest.approx(one[name], abs=1e-5), name
    assert leftovers(run) == []
    assert sorted(path.name for path in run.stage_path("train", 0).iterdir()) == ["manifest.json", "samples.parquet"]


def test_a_task_that_is_killed_ends_the_job_and_the_next_one_begins_again(slurm: Cluster, run: RunDir) -> None:
    code, log = train_job(slurm, run, SIGNALLED, signal=(2, KILL))

    assert code not in (0, 75), log
    assert time.time() - float(log.partition("signal at ")[2].split()[0]) < END_SECONDS
    assert saved_steps(run, 0) == 0
    assert not run.manifest_path("train", 0).exists()
    assert slurm.run("squeue", "-h") == ""


def test_a_job_with_other_tasks_than_the_config_wants_ends_with_both_numbers(
    slurm: Cluster, by_one_process: RunDir, tmp_path: Path
) -> None:
    run = copy_run(by_one_process, tmp_path / "run")

    code, log = train_job(slurm, run, TRAIN)

    assert code == 2, log
    assert "the config wants 1 trainer processes" in log
    assert "the job has 4 tasks (SLURM_NTASKS)" in log
