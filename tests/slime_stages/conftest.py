"""A small run that has begun, and a scheduler that says of its jobs what a test wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from tests.fakes.commands import FakeCommands
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    """Nothing is planned or made."""
    return SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    """Knows no job."""
    return FakeCommands(tmp_path / "bin").install(monkeypatch)
