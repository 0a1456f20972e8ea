"""One engine and one finished run for all end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from tests.e2e.runs import at_version_0, copy_run, new_run, run_iteration
from tests.e2e.stage_calls import Forker


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
    tiny_prompts: Path,
    tiny_engine: Engine,
    forker: Forker,
) -> RunDir:
    """A run of two iterations that nothing disturbed, with the engine of the session; tests work on copies."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run = new_run(folder, tiny_model, tiny_prompts, engine=at_version_0(tiny_engine))
    for iteration in (0, 1):
        run_iteration(run, iteration, forker)
    return run


@pytest.fixture
def run(finished: RunDir, tmp_path: Path, engine: Engine) -> RunDir:
    """A copy of the finished run, to do anything with; its engine serves version 0."""
    return copy_run(finished, tmp_path / "run")


@pytest.fixture
def engine(tiny_engine: Engine) -> Engine:
    return at_version_0(tiny_engine)
