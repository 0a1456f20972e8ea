"""Hold processes to limits that the kernel keeps for nobody but root: look at them, and kill what is too much."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from slime_stages.isolation import process_tree

_ROUNDS, _ROUND_SECONDS = 100, 0.01


def hold_to_limits(
    find: Callable[[], list[int]], *, process_count: int, memory_bytes: int | None, say: Callable[[str], None]
) -> bool:
    """Kill what is too much of the processes that `find` gives, and say so; whether that was possible."""
    family = find()
    if len(family) > process_count:
        say(f"more than {process_count} processes: all killed")
        return kill_all(find)
    if memory_bytes is not None and (held := process_tree.excess(family, memory_bytes)) is not None:
        largest = max(family, key=process_tree.resident_bytes)
        say(f"{held >> 20} MiB of memory, the limit is {memory_bytes >> 20}: the largest process is killed")
        _signal(largest, signal.SIGKILL)
    return True


def kill_all(find: Callable[[], list[int]]) -> bool:
    """Stop before killing, and look again: processes could be started faster than they are found."""
    for _ in range(_ROUNDS):
        family = find()
        if not family:
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for member in family:
                _signal(member, number)
        time.sleep(_ROUND_SECONDS)
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
