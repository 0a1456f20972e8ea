"""A batch system signals every process of a job; the engine goes on until its owner ends it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from slime_stages.serving.process import GuardedProcess

SERVER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_neither_the_guard_nor_its_server_ends_by_a_signal_to_the_whole_job(
    tmp_path: Path, number: signal.Signals
) -> None:
    guard = GuardedProcess()
    guard.start([sys.executable, "-c", SERVER, str(tmp_path / "pid")], os.environ, tmp_path / "log")
    os.kill(guard.pid, number)  # before it can have put any handler
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert guard.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server = psutil.Process(int((tmp_path / "pid").read_text()))

    server.send_signal(number)
    os.kill(guard.pid, number)
    time.sleep(1.0)

    assert server.is_running()
    assert server.status() != psutil.STATUS_ZOMBIE
    guard.stop()
    assert not server.is_running()


def test_the_owner_takes_signals_as_before(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    guard = GuardedProcess()
    guard.start(["true"], os.environ, tmp_path / "log")
    guard.stop()

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
