"""A training that is stopped between steps goes on with the next one, and ends as if nothing had been."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from slime_stages.weights.outputs import check_outputs
from slime_stages.weights.partial import partial_folder, saved_steps
from tests.e2e.runs import copy_run, leftovers
from tests.stages.train.attempts import KILL, TERM, USR2, Attempt, outcome


def attempt(run: RunDir, number: int | None = None, after: str = "step 1", iteration: int = 1) -> Attempt:
    call = StageCall(stage="train", run=run.root, iteration=iteration)
    return Attempt(call=call, log=log_of(run), number=number, after=after)


def log_of(run: RunDir) -> Path:
    return run.root.with_suffix(".log")


def trained(run: RunDir, iteration: int = 1) -> dict[str, Any]:
    """All that training has made, without clocks."""
    manifest = read_manifest(run.manifest_path("train", iteration))
    check_outputs(run, manifest)
    with (run.metrics_path("train")).open() as lines:
        logged = [json.loads(line) for line in lines]
    return {
        "parameters": manifest.content,
        "critic": manifest.outputs.get("critic_content"),
        "samples": pq.read_table(run.train_samples_path(iteration)).to_pydict(),
        "metrics": manifest.metrics,
        "probes": manifest.outputs["probes"],
        "logged": [
            {key: line[key] for key in line if key != "time" and not key.startswith("perf/")} for line in logged
        ],
        "leftovers": leftovers(run),
        "files": sorted(path.name for path in run.stage_path("train", iteration).iterdir()),
        "checkpoints": sorted(path.name for path in run.checkpoints_path.iterdir()),
    }


@pytest.fixture(scope="module")
def drained_once(before_training: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = copy_run(before_training, tmp_path_factory.mktemp("drained") / "run")
    assert outcome(attempt(run, TERM, "step 1")) == 75
    return run


@pytest.fixture
def drained(drained_once: RunDir, tmp_path: Path) -> RunDir:
    """A copy of a run whose training was drained after its first step, by SIGTERM."""
    return copy_run(drained_once, tmp_path / "run")


def test_a_drained_training_says_where_it_stopped_and_keeps_its_steps(drained_once: RunDir) -> None:
    assert "train 1 stopped after step 1 of 3 (SIGTERM): these steps are kept" in log_of(drained_once).read_text()
    assert saved_steps(drained_once, 1) == 1


def test_a_drained_training_goes_on_with_the_next_step_and_ends_bit_for_bit_as_if_undisturbed(
    drained: RunDir, undisturbed: RunDir
) -> None:
    assert outcome(attempt(drained)) == 0

    assert "train 1: goes on after step 1 of 3" in log_of(drained).read_text()
    assert trained(drained) == trained(undisturbed)


def test_a_training_may_be_drained_again_and_again(drained: RunDir, undisturbed: RunDir) -> None:
    assert outcome(attempt(drained, USR2, "step 1")) == 75
    assert saved_steps(drained, 1) == 2
    assert [path.name for path in sorted(partial_folder(drained, 1).glob("iter_*"))] == ["iter_0000002"]

    assert outcome(attempt(drained)) == 0

    assert trained(drained) == trained(undisturbed)


def test_a_training_drained_while_it_loads_leaves_what_was_there(drained: RunDir, undisturbed: RunDir) -> None:
    assert outcome(attempt(drained, TERM, "load")) == 75
    assert saved_steps(drained, 1) == 1

    assert outcome(attempt(drained)) == 0

    assert trained(drained) == trained(undisturbed)


@pytest.mark.parametrize("after", ["step 3", "save"])
def test_a_training_that_is_told_to_stop_after_its_last_step_commits_as_the_quickest_way_out(
    run: RunDir, undisturbed: RunDir, after: str
) -> None:
    assert outcome(attempt(run, TERM, after)) == 0

    assert trained(run) == trained(undisturbed)


def test_a_training_killed_between_steps_takes_them_all_again_from_the_last_checkpoint(
    run: RunDir, undisturbed: RunDir
) -> None:
    assert outcome(attempt(run, KILL, "step 2")) == -KILL
    assert saved_steps(run, 1) == 0

    assert outcome(attempt(run)) == 0

    assert trained(run) == trained(undisturbed)


def test_a_training_killed_while_it_keeps_its_steps_goes_on_from_those_kept_before(
    drained: RunDir, undisturbed: RunDir
) -> None:
    assert outcome(replace(attempt(drained, TERM, "step 1"), killed_after="save")) == -KILL
    assert saved_steps(drained, 1) == 1

    assert outcome(attempt(drained)) == 0

    assert trained(drained) == trained(undisturbed)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (flip, "iter_0000001/optimizer__0_1.distcp"),
        (Path.unlink, "iter_0000001/checkpoint.json"),
        (flip, "iter_0000001/steps.npz"),
        (cut, "partial.json"),
    ],
)
def test_steps_that_are_not_whole_are_taken_again_from_the_last_checkpoint(
    drained: RunDir, undisturbed: RunDir, damage: Any, name: str
) -> None:
    damage(partial_folder(drained, 1) / name)

    assert outcome(attempt(drained)) == 0

    assert "begins again with step 1" in log_of(drained).read_text()
    assert trained(drained) == trained(undisturbed)


def test_steps_taken_on_other_inputs_are_not_gone_on_from(
    before_training: RunDir, run: RunDir, undisturbed: RunDir, tmp_path: Path
) -> None:
    other = copy_run(before_training, tmp_path / "other")
    reward = other.shard_path("reward", 1, 0, 1)
    for path in (reward, reward.with_suffix(".json")):
        path.unlink()
    rescored = StageCall(stage="reward", run=other.root, iteration=1, shard=0)
    assert outcome(Attempt(call=rescored, log=log_of(other), environment={"PARITY": "even"})) == 0
    assert outcome(attempt(other, TERM)) == 75
    shutil.copytree(partial_folder(other, 1), partial_folder(run, 1))

    assert outcome(attempt(run)) == 0

    assert (
        "begins again with step 1: the steps of an earlier attempt cannot be used: they were taken on other inputs"
        in (log_of(run).read_text())
    )
    assert trained(run) == trained(undisturbed)


def test_a_committed_training_that_is_made_again_begins_with_step_1(
    drained: RunDir, undisturbed: RunDir, tmp_path: Path
) -> None:
    run = copy_run(undisturbed, tmp_path / "again")
    shutil.copytree(partial_folder(drained, 1), partial_folder(run, 1))  # as if killed right after the commit
    call = StageCall(stage="train", run=run.root, iteration=1, force=True)

    assert outcome(Attempt(call=call, log=log_of(run))) == 0

    assert "goes on after" not in log_of(run).read_text()
    assert trained(run)["parameters"] == trained(undisturbed)["parameters"]
