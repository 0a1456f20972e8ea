"""A run whose next call is the training of its second iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from tests.e2e.runs import copy_run
from tests.stages.train.small_runs import make, run_to_train


@pytest.fixture(scope="session")
def before_training(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path) -> RunDir:
    """Do not write to it."""
    return run_to_train(tmp_path_factory.mktemp("train-runs") / "run", tiny_model, tiny_prompts, iteration=1)


@pytest.fixture(scope="session")
def undisturbed(before_training: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same, trained in one go."""
    run = copy_run(before_training, tmp_path_factory.mktemp("undisturbed") / "run")
    make(run, "train", 1)
    return run


@pytest.fixture
def run(before_training: RunDir, tmp_path: Path) -> RunDir:
    """A copy of the run, to train."""
    return copy_run(before_training, tmp_path / "run")
