"""A training with a critic is stopped between steps like any other: the critic's steps come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import critic_checkpoints
from slime_stages.weights.partial import partial_folder, saved_steps
from tests.e2e.runs import copy_run
from tests.stages.train.attempts import TERM, Attempt, outcome
from tests.stages.train.small_runs import make, run_to_train
from tests.stages.train.test_partial import attempt, flip, log_of, trained


@pytest.fixture(scope="module")
def before_training(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path) -> RunDir:
    """Three steps of the critic and three of the policy are next; do not write to it."""
    folder = tmp_path_factory.mktemp("critic-runs") / "run"
    return run_to_train(folder, tiny_model, tiny_prompts, advantage_estimator="ppo")


@pytest.fixture(scope="module")
def undisturbed(before_training: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = copy_run(before_training, tmp_path_factory.mktemp("critic-undisturbed") / "run")
    make(run, "train", 0)
    return run


def until(run: RunDir, after: str | None = None) -> Attempt:
    return attempt(run, None if after is None else TERM, after or "", iteration=0)


def test_a_training_with_a_critic_stops_among_either_steps_and_ends_bit_for_bit_as_if_undisturbed(
    run: RunDir, undisturbed: RunDir
) -> None:
    assert outcome(until(run, "step 2")) == 75  # of the critic
    assert saved_steps(run, 0) == 2
    assert outcome(until(run, "step 2")) == 75  # the first one of the policy
    assert saved_steps(run, 0) == 4
    assert [path.name for path in critic_checkpoints(partial_folder(run, 0)).glob("iter_*")] == ["iter_0000004"]

    assert outcome(until(run)) == 0

    assert "train 0: goes on after step 4 of 6" in log_of(run).read_text()
    assert trained(run, 0) == trained(undisturbed, 0)


@pytest.mark.slow
def test_steps_whose_critic_is_not_whole_are_taken_again_by_both_models(run: RunDir, undisturbed: RunDir) -> None:
    assert outcome(until(run, "step 4")) == 75
    flip(critic_checkpoints(partial_folder(run, 0)) / "iter_0000004" / "optimizer__0_1.distcp")

    assert outcome(until(run)) == 0

    assert "begins again with step 1" in log_of(run).read_text()
    assert trained(run, 0) == trained(undisturbed, 0)
