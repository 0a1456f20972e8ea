"""Training killed within a step, or within a save: the next attempt makes the same, bit for bit, no step twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from tests.e2e.runs import copy_run
from tests.stages.train.attempts import KILL, Attempt, outcome
from tests.stages.train.small_runs import make, run_to_train
from tests.stages.train.test_partial import attempt, log_of, trained

slow = pytest.mark.slow


def killed(run: RunDir, moment: str, iteration: int = 1) -> Attempt:
    return replace(attempt(run, iteration=iteration), killed_after=moment)


@pytest.mark.parametrize(
    "moment",
    [
        "optimizer in step 2",
        pytest.param("forward in step 2", marks=slow),
        pytest.param("backward in step 2", marks=slow),
        pytest.param("backward in step 1", marks=slow),
        pytest.param("optimizer in step 3", marks=slow),
        pytest.param("save", marks=slow),  # which goes on in the background
    ],
)
def test_a_training_killed_within_a_step_ends_as_if_undisturbed(run: RunDir, undisturbed: RunDir, moment: str) -> None:
    assert outcome(killed(run, moment)) == -KILL
    assert not run.manifest_path("train", 1).exists()

    assert outcome(attempt(run)) == 0

    assert trained(run) == trained(undisturbed)


@slow
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_process_that_writes_in_the_background_and_is_killed_fails_the_training_and_the_next_attempt_makes_it(
    run: RunDir, undisturbed: RunDir, part: str
) -> None:
    assert outcome(killed(run, f"file of {part}")) == 70
    assert "the checkpoint writer died with exit code -9" in log_of(run).read_text()

    assert outcome(attempt(run)) == 0

    assert trained(run) == trained(undisturbed)


@slow
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_training_killed_while_it_saves_in_the_foreground_ends_as_if_undisturbed(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path, part: str
) -> None:
    before = run_to_train(tmp_path / "before", tiny_model, tiny_prompts, async_save=False)
    undisturbed, run = (copy_run(before, tmp_path / name) for name in ("undisturbed", "run"))
    make(undisturbed, "train", 0)

    assert outcome(killed(run, f"file of {part}", iteration=0)) == -KILL
    assert outcome(attempt(run, iteration=0)) == 0

    assert trained(run, 0) == trained(undisturbed, 0)
