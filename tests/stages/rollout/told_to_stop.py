"""Signals for the tests of a drain; their fixture is `signals`."""

from __future__ import annotations

import os
import signal

import pytest

from stages.rollout import admission


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def give_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What is left after a signal."""
    monkeypatch.setattr(admission, "drain_seconds", lambda: seconds)
