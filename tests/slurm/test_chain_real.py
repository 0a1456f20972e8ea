"""Whole runs on a real SLURM, begun by a command that returns; and what comes of every fault that we can cause."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import first_incomplete
from slime_stages.run.rundir import RunDir
from tests.e2e.runs import at_version_0, manifests, new_run, run_iteration
from tests.e2e.stage_calls import Forker
from tests.slurm.chains import COMMAND, ROOT, STAGES, ChainRun

pytestmark = pytest.mark.slurm

CONTROLLER_AWAY_SECONDS = 20


def test_a_run_goes_on_without_anybody_and_gives_the_samples_of_a_run_here(
    chain: ChainRun, forker: Forker, tmp_path: Path
) -> None:
    chain.settings = {"rollout-shards": "4"}
    said = chain.iter(3)
    assert said.stdout.split() == [a.job_id for i in (0, 1) for s in STAGES for a in chain.attempts(s, i)] + [
        attempt.job_id for attempt in chain.attempts("chain", 1)
    ]

    state = chain.wait(3)

    assert state.stopped is None
    assert first_incomplete(chain.run) == 3
    assert [len(chain.attempts(stage, i)) for stage in STAGES for i in range(3)] == [1] * 12
    here = new_run(tmp_path / "here", chain.model, chain.prompts, engine=at_version_0(chain.engine), rollout_shards=4)
    for iteration in range(3):
        run_iteration(here, iteration, forker)
    assert sampled(here) == sampled(chain.run)
    assert made(here) == made(chain.run)


def sampled(run: RunDir) -> list[tuple[Any, ...]]:
    shards = [read_samples(path) for path in sorted(run.iterations_path.rglob("rollout/*.parquet"))]
    return [(s.index, s.tokens, s.rollout_log_probs, s.sampling_params) for samples in shards for s in samples]


def made(run: RunDir) -> dict[str, str]:
    """The contents of all but rollouts, whose sessions are named after the run: rewards, parameters, weights."""
    return {name: each.content for name, each in manifests(run).items() if "/rollout/" not in name}


def test_a_task_that_fails_once_is_submitted_again_alone(chain: ChainRun) -> None:
    chain.plant(0, 3, "exit 1")
    chain.iter(1)

    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1
    assert [end and end.exit_code for end in chain.tries("rollout", 0, 1)] == [None, 0]
    assert [end and end.exit_code for end in chain.tries("rollout", 0, 0)] == [0]


def test_the_same_failure_twice_stops_the_chain_with_advice(chain: ChainRun) -> None:
    chain.plant(0, 3, "exit 1", "exit 1", "exit 1")
    chain.iter(2)

    state = chain.wait(2)

    assert state.stopped is not None
    assert "rollout 0/1" in state.stopped
    assert state.advice
    assert len(chain.tries("rollout", 0, 1)) == 2
    shown = chain.call("status", "--run", str(chain.run.root))
    assert "rollout 0/1" in shown.stdout + shown.stderr


def test_a_cancelled_task_stops_the_chain_and_iter_goes_on(chain: ChainRun) -> None:
    chain.plant(0, 3, "sleep 600")
    chain.iter(1)
    task = chain.running("rollout", 0, 1)
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")
    chain.cluster.run("scancel", task)

    state = chain.wait(1)
    assert state.stopped is not None
    assert "cancelled" in state.stopped

    chain.iter(0)
    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1


def test_a_node_that_dies_is_survived(chain: ChainRun) -> None:
    chain.plant(0, 3, "sleep 600")
    chain.iter(1)
    task = chain.running("rollout", 0, 1)
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")
    node = chain.cluster.run("squeue", "-h", "-j", task, "-o", "%N")
    chain.cluster.kill_node(node)

    state = chain.wait(1)

    assert state.stopped is None
    assert first_incomplete(chain.run) == 1


def test_a_job_that_is_requeued_by_hand_goes_on_from_its_journal(chain: ChainRun) -> None:
    chain.plant(0, 3, "sleep 600")  # groups 2 and 3 are shard 1; group 2 is finished by then
    chain.iter(1)
    task = chain.running("rollout", 0, 1)
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")
    chain.cluster.run("scontrol", "requeue", task)

    assert chain.wait(1).stopped is None
    assert len(chain.attempts("rollout", 0)) == 1  # the same job, once more
    assert first_incomplete(chain.run) == 1


def test_a_preempted_job_drains_and_comes_back(chain: ChainRun) -> None:
    chain.plant(0, 3, "sleep 600")
    chain.iter(1, "--slurm-rollout-partition", "low")
    chain.running("rollout", 0, 1)
    chain.until(lambda: chain.run.manifest_path("rollout", 0, 0, 2).exists(), "the other shard")
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")
    everything = ("--nodes=4", "--exclusive", "--partition=main", "--wrap", "sleep 8")
    chain.cluster.run("sbatch", "--output=/dev/null", *everything)

    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1
    assert len(chain.attempts("rollout", 0)) == 1


def test_a_job_over_its_memory_stops_the_chain_with_advice(chain: ChainRun) -> None:
    chain.plant(0, 3, "memory 3000")
    chain.iter(1)

    state = chain.wait(1)

    assert state.stopped is not None
    assert "memory" in state.stopped
    assert state.advice is not None
    assert "--slurm-rollout-mem" in state.advice


def test_the_controller_may_be_away_while_jobs_are_submitted_and_status_is_asked(chain: ChainRun) -> None:
    chain.iter(1, "--dry-run")
    chain.cluster.stop_controller()
    root = str(chain.run.root)
    words = ["iter", "--run", root, "--sbatch", str(chain.sbatch), "--executor", "slurm", "--n", "1"]
    with subprocess.Popen(
        [COMMAND, *words], cwd=ROOT, env=chain.cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as submitting:
        shown = [chain.call("status", "--run", root).stderr]
        time.sleep(CONTROLLER_AWAY_SECONDS)
        shown.append(chain.call("status", "--run", root).stderr)
        chain.cluster.start_controller()
        assert submitting.wait(timeout=120) == 0, submitting.stderr and submitting.stderr.read().decode()
    assert not any("error" in each for each in shown)

    assert chain.wait(1).stopped is None
    assert [len(chain.attempts(stage, 0)) for stage in STAGES] == [1] * 4


@pytest.mark.parametrize(("flag", "value"), [("partition", "nowhere"), ("account", "nobody")])
def test_a_header_that_sbatch_refuses_is_named_and_nothing_stays_queued(chain: ChainRun, flag: str, value: str) -> None:
    path = chain.sbatch / "train.sbatch"
    path.write_text(path.read_text().replace("#SBATCH --cpus", f"#SBATCH --{flag}={value}\n#SBATCH --cpus"))

    said = chain.iter(1, check=False)

    assert said.returncode == 2
    assert f"{path}:2" in said.stderr
    assert chain.cluster.run("squeue", "-h") == ""


def test_the_second_of_two_people_is_told_and_nothing_is_doubled(chain: ChainRun) -> None:
    chain.iter(1)
    second = chain.iter(1, check=False)

    assert second.returncode == 2
    assert "has a chain up to iteration 0 already" in second.stderr
    assert chain.wait(1).stopped is None
    assert [len(chain.attempts(stage, 0)) for stage in STAGES] == [1] * 4


def test_two_copies_of_a_task_commit_one_shard(chain: ChainRun) -> None:
    """A killed slurmd leaves its job running, while the controller starts it again on another node."""
    chain.plant(0, 3, "sleep 45")
    chain.iter(1)
    task = chain.running("rollout", 0, 1)
    node = chain.cluster.run("squeue", "-h", "-j", task, "-o", "%N")
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")
    chain.cluster.kill_slurmd(node)

    assert chain.wait(1).stopped is None
    plan = ensure_plan(chain.run, 0)
    shards = sorted(path.name for path in chain.run.stage_path("rollout", 0).glob("*.parquet"))
    assert shards == [chain.run.shard_path("rollout", 0, shard, plan.shard_count).name for shard in (0, 1)]


def test_a_process_of_a_training_on_two_nodes_that_is_killed_as_it_loads_costs_one_try(chain: ChainRun) -> None:
    chain.settings |= {"actor-num-nodes": "2", "actor-num-gpus-per-node": "1"}
    chain.edit_header("train", "#SBATCH --cpus", "#SBATCH --nodes=2 --ntasks-per-node=1\n#SBATCH --cpus")
    chain.iter(1)
    chain.until(lambda: bool(chain.attempts("train", 0)), "a training in the queue")
    os.kill(chain.process(str(chain.attempts("train", 0)[0].job_id), 1), signal.SIGKILL)

    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1
    first, second = chain.tries("train", 0)
    assert first is None or first.exit_code != 0
    assert second is not None
    assert (second.exit_code, second.restarts) == (0, 0)
