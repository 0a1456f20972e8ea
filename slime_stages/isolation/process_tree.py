"""Find, weigh and kill a process together with everything it started (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WALL = 0x40000000
"""Children that were cloned without a signal at their end, too."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that none escapes by forking twice."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed by the kernel as soon as the parent process is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies included; empty if it is gone."""
    if not _kernel_lists_children():
        return _children_by_search(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def has_children() -> bool:
    """Whether this process has any child, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, without `pid` itself."""
    found = children(pid)
    for child in found:  # grows while it is walked
        found += children(child)
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL a process, its process group and its descendants in other groups.

    The group is stopped first, all of it at once: it could start processes faster than they are found.
    """
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGSTOP)
    family = [pid, *descendants(pid)]
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(OSError):
            os.kill(member, signal.SIGKILL)


def exceeds(pid: int, limit_bytes: int) -> int | None:
    """The bytes of memory that a process and its descendants hold together, if more than the limit."""
    return excess([pid, *descendants(pid)], limit_bytes)


def exceeds_alone(limit_bytes: int) -> bool:
    """The same for this process without its descendants."""
    return excess([os.getpid()], limit_bytes) is not None


def excess(family: Sequence[int], limit_bytes: int) -> int | None:
    """The bytes of memory that processes hold together, if more than the limit.

    Resident pages are quick to read but count a page once for each process that shares it (all that was forked
    from one parent); only where their sum is too large are shares counted in proportion.
    """
    if sum(map(resident_bytes, family)) <= limit_bytes:
        return None
    held = sum(map(_proportional_bytes, family))
    return held if held > limit_bytes else None


@functools.cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children_by_search(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def resident_bytes(pid: int) -> int:
    """Its pages in memory, those too that it shares; 0 if it is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return resident_bytes(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _read(path: str) -> bytes:
    """A file of the kernel, several times as fast as `Path.read_text`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = b""
        while part := os.read(descriptor, 1 << 16):
            content += part
        return content
    finally:
        os.close(descriptor)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
