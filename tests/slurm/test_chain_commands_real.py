"""What a person does to a chain that runs, or has run: follow, cancel, go on, make again, have a job drive it."""

from __future__ import annotations

import shutil
import signal
import subprocess

import pytest

from slime_stages.launch.states import first_incomplete
from slime_stages.run.manifest import read_manifest
from slime_stages.slurm.jobs import all_attempts
from slime_stages.stage import read_run_plan
from tests.e2e.runs import manifests
from tests.slurm.chains import COMMAND, ROOT, STAGES, ChainRun

pytestmark = pytest.mark.slurm

REFUSAL = """#!/bin/bash
echo "sbatch: error: Batch job submission failed: Access/permission denied" >&2
exit 1
"""


def test_rollouts_one_version_behind_are_generated_while_training_goes_on(chain: ChainRun) -> None:
    chain.settings |= {"staleness": "1"}
    chain.plant(1, 7, "sleep 20")
    said = chain.iter(3, "--follow", timeout=400.0)

    assert said.returncode == 0
    assert first_incomplete(chain.run) == 3
    assert chain.wait(3).stopped is None
    assert [read_run_plan(chain.run, iteration).policy_version for iteration in range(3)] == [0, 0, 1]
    rollout, train = chain.attempts("rollout", 1)[0].job_id, chain.attempts("train", 0)[0].job_id
    spans = chain.spans(f"{rollout}_1", str(train))
    assert spans[f"{rollout}_1"][0] < spans[str(train)][1]
    assert spans[str(train)][0] < spans[f"{rollout}_1"][1]


def test_following_a_chain_that_stops_ends_with_its_reason(chain: ChainRun) -> None:
    chain.plant(0, 3, "exit 1", "exit 1")

    said = chain.iter(1, "--follow", check=False, timeout=300.0)

    assert said.returncode == 65
    assert "has stopped: rollout 0/1: ended with exit code 1; the same as before" in said.stderr
    assert f"hint: slime-stages logs rollout --run {chain.run.root} --iter 0 --shard 1" in said.stderr


def test_who_stops_following_leaves_the_jobs_alone(chain: ChainRun) -> None:
    chain.plant(0, 3, "sleep 10")
    words = [COMMAND, "iter", *chain.iter_words(1), "--follow"]
    with subprocess.Popen(
        words, cwd=ROOT, env=chain.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        task = chain.running("rollout", 0, 1)
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=60) == 0

    assert chain.cluster.run("squeue", "-h", "-j", task, "-o", "%T") == "RUNNING"
    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1


def test_a_run_that_was_cancelled_goes_on_where_it_was(chain: ChainRun) -> None:
    chain.plant(0, 2, "", "", "exit 1")  # if it is asked again
    chain.plant(0, 3, "sleep 600")
    chain.iter(1)
    chain.running("rollout", 0, 1)
    chain.until(lambda: chain.journalled(0, 1) == 1, "a finished group")

    said = chain.call("cancel", "--run", str(chain.run.root))

    assert "jobs cancelled" in said.stderr
    assert chain.wait(1).stopped == "all jobs cancelled by `slime-stages cancel`"
    assert chain.iter(0).stdout.split() != []
    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1
    assert len(chain.attempts("rollout", 0)) == 2
    assert (chain.folder / "faults" / "0-2").read_text() == "exit 1"


def test_an_output_is_made_again_by_jobs_and_here_with_all_that_was_made_from_it(chain: ChainRun) -> None:
    chain.settings |= {"custom-rm-path": "tests.slurm.faults.reward"}
    chain.iter(1)
    assert chain.wait(1).stopped is None
    before = contents(chain)
    root, flip = str(chain.run.root), chain.folder / "faults" / "flip"
    flip.parent.mkdir(exist_ok=True)
    flip.touch()

    said = chain.call("rerun", "reward", "--iter", "0", "--shard", "0", "--run", root, "--submit")

    assert chain.wait(1).stopped is None
    assert chain.attempts("reward", 0)[1].job_id in said.stdout.split()
    assert [attempt.shards for attempt in chain.attempts("reward", 0)] == [(0, 1), (0,)]
    assert [len(chain.attempts(stage, 0)) for stage in STAGES] == [1, 2, 2, 2]
    assert first_incomplete(chain.run) == 1
    assert {name for name, content in contents(chain).items() if before[name] != content} == {
        "iterations/000000/reward/shard-00000-of-00002.json",
        "iterations/000000/train/manifest.json",
        "iterations/000000/sync/manifest.json",
    }

    flip.unlink()
    here = chain.call("rerun", "reward", "--iter", "0", "--shard", "0", "--run", root, "--downstream")

    made = [read_manifest(chain.run.root / path) for path in here.stdout.split()]
    assert [manifest.kind for manifest in made] == ["reward", "train", "sync"]
    assert contents(chain) == before
    assert chain.cluster.run("squeue", "-h") == ""


def test_a_job_drives_a_run_whose_jobs_may_not_submit_and_goes_on_after_its_own_time_limit(chain: ChainRun) -> None:
    refusing = chain.folder / "bin"
    refusing.mkdir()
    (refusing / "sbatch").write_text(REFUSAL)
    (refusing / "sbatch").chmod(0o755)
    for stage in STAGES:
        chain.edit_header(stage, "exec ", f"export PATH={refusing}:$PATH\nexec ")
    driver = chain.folder / "driver.sbatch"
    shutil.copy(ROOT / "sbatch" / "driver.sbatch", driver)
    driver.write_text(driver.read_text().replace("--mem=2G", "--mem=1500M"))
    chain.plant(0, 3, "exit 1")

    words = ["sbatch", "--parsable", f"--output={chain.folder}/driver.log", "--open-mode=append", str(driver)]
    job = subprocess.check_output([*words, *chain.iter_words(2)], cwd=ROOT, env=chain.environment, text=True).strip()
    chain.until(lambda: len(chain.attempts("rollout", 0)) == 2, "a second try")
    chain.cluster.run("scancel", "--batch", "--signal=USR2", job)  # as at its time limit

    assert chain.wait(2, seconds=400.0).stopped is None
    chain.until(lambda: not chain.cluster.run("squeue", "-h"), "the end of the driver")
    assert first_incomplete(chain.run) == 2
    assert [attempt.shards for attempt in chain.attempts("rollout", 0)] == [(0, 1), (1,)]
    assert {attempt.claimed_by for attempt in all_attempts(chain.run)} == {f"job:{job}"}
    assert {attempt.stage for attempt in all_attempts(chain.run)} == set(STAGES)
    shown = chain.cluster.run("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown
    assert "Restarts=1" in shown


def contents(chain: ChainRun) -> dict[str, str]:
    return {name: manifest.content for name, manifest in manifests(chain.run).items()}
