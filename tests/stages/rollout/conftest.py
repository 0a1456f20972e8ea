from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from slime_stages import drain
from slime_stages.drain import install_drain


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers as in a stage, in a process that nobody has told to stop yet."""
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    install_drain()
    yield
    for number, handler in drain._drain.handlers.items():
        signal.signal(number, handler)
