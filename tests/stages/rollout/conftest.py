from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages import drain
from slime_stages.drain import install_drain
from tests.stages.rollout.carried_runs import Start, start_carried


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers as in a stage, in a process that nobody has told to stop yet."""
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    install_drain()
    yield
    for number, handler in drain._drain.handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def start(tiny_model: Path, tiny_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a run with these settings, whose rollouts hand over groups."""
    return lambda **settings: start_carried(tmp_path / "run", tiny_model, tiny_prompts, monkeypatch, **settings)
