"""Local sandboxes for tests, by every way in that this machine has."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

from slime_stages.agent.sandbox.local import LocalSandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.agent.sandbox.shell import ShellSandbox
from slime_stages.isolation import bubblewrap
from slime_stages.isolation.guard import Way

WAYS: list[Way] = ["namespaces", *(["bubblewrap"] if bubblewrap.is_installed() else [])]  # type: ignore[list-item]

OpenBox = Callable[..., ShellSandbox]
"""Gives a sandbox of some kind, with changes to its settings."""

SMALL = SandboxSettings(disk_bytes=16 << 20, file_count=2000, memory_bytes=1 << 30, process_count=48)


def local_sandbox(way: Way = "namespaces", **changes: object) -> LocalSandbox:
    return LocalSandbox(dataclasses.replace(SMALL, **changes), (way,))  # type: ignore[arg-type]


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_file_count() -> int:
    return len(os.listdir("/proc/self/fd"))
