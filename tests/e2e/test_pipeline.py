"""The stages as Unix programs: piped in a shell, typed again, made stale by hand, refused or accepted by the loop."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from slime_stages.weights.record import engine_label
from tests.e2e.runs import from_the_start, manifests, mend, new_run, without
from tests.e2e.stage_calls import ROOT, Forker

PROGRAM = str(Path(sys.executable).with_name("slime-stages"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `slime-stages` is ours; its exit code is that of the first program that failed."""
    words = ["bash", "-o", "pipefail", "-c", line.replace("slime-stages", shlex.quote(PROGRAM))]
    return subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)


def test_four_programs_in_a_pipe_make_an_iteration_and_say_so_when_there_is_nothing_to_do(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "piped", tiny_model, tiny_prompts, engine=engine)
    line = (
        f"slime-stages rollout --run {run.root} --iter 0 | slime-stages reward - | slime-stages train - "
        "| tee /dev/stderr | slime-stages sync -"
    )

    first = shell(line)
    made = manifests(run)
    again = shell(line)

    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [str(run.manifest_path("sync", 0))]
    assert str(run.manifest_path("train", 0)) in first.stderr.splitlines()
    assert len(made) == 6  # two shards of rollout and reward each, train and sync
    assert (again.returncode, again.stdout) == (0, first.stdout)
    for title in ("rollout 0/0", "rollout 0/1", "reward 0/0", "reward 0/1", "train 0", "sync 0"):
        assert f"{title}: already committed" in again.stderr
    assert manifests(run) == made


def test_a_stage_that_gets_nothing_through_the_pipe_fails() -> None:
    done = shell("slime-stages rollout --run nowhere | slime-stages train -")

    assert done.returncode == 66
    assert "error: train was given no manifest" in done.stderr


def test_what_a_rollout_by_hand_makes_stale_stops_the_loop_until_it_is_made_again_or_accepted(
    run: RunDir, engine: Engine, forker: Forker
) -> None:
    without(run, 1, "rollout")
    shutil.rmtree(run.iteration_path(1))
    label = engine_label(run.weights_path(0), 0)
    engine.update_weights(run.weights_path(1), label)  # samples of these differ from those of version 0
    forced = StageCall(stage="rollout", run=run.root, iteration=0, shard=1, force=True)
    assert forker.run(forced).result is not None
    command = f"slime-stages iter --run {run.root} --n 1"

    refused = shell(command)
    accepted = shell(f"{command} --accept-stale")

    assert refused.returncode == 65
    assert "error: reward 0/1 is stale: rollout changed since" in refused.stderr
    assert f"hint: slime-stages reward --run {run.root} --iter 0 --shard 1 " in refused.stderr
    assert "--accept-stale" in refused.stderr
    assert accepted.returncode == 0, accepted.stderr
    assert states(run, 0) == {
        "rollout": ["fresh"] * 2,
        "reward": ["fresh", "stale"],
        "train": ["stale"],
        "sync": ["fresh"],
    }
    assert states(run, 1) == {"rollout": ["fresh"] * 2, "reward": ["fresh"] * 2, "train": ["fresh"], "sync": ["fresh"]}


def test_a_killed_loop_leaves_no_process_and_is_finished_by_the_same_command(
    finished: RunDir, run: RunDir, forker: Forker
) -> None:
    words = [PROGRAM, "iter", "--run", str(from_the_start(run).root), "--n", "1"]
    with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as loop:
        while not (run.manifest_path("rollout", 0, 1, 2)).exists():
            assert loop.poll() is None
            time.sleep(0.05)
        below = psutil.Process(loop.pid).children(recursive=True)
        loop.kill()

    _, alive = psutil.wait_procs(below, timeout=15)
    committed = manifests(run)
    mend(run, forker, count=1)

    assert len(below) >= 1
    assert alive == []
    after = manifests(run)
    assert {name: manifest.started for name, manifest in after.items() if name in committed} == {
        name: manifest.started for name, manifest in committed.items()
    }
    assert {name: manifest.content for name, manifest in after.items()} == {
        name: manifest.content for name, manifest in manifests(finished).items()
    }


def states(run: RunDir, iteration: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in iteration_states(run, ensure_plan(run, iteration)):
        found.setdefault(item.call.stage, []).append(item.state.kind)
    return found
