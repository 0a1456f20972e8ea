"""What a worker scores at this moment, and since when: memory that it shares with the supervisor.

A worker that hangs or dies says nothing any more; this says which of its tasks is to blame.
"""

from __future__ import annotations

import mmap
import struct
import time

_ENTRY = struct.Struct("=dQ")


class TaskClock:
    """Made before the worker is forked; the worker writes, the supervisor reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRY.size)

    def start(self, number: int) -> None:
        """The worker begins with a task."""
        _ENTRY.pack_into(self._memory, 0, time.monotonic(), number)

    def read(self) -> tuple[int, float]:
        """The number of the task and when it began; 0 before the first one."""
        started, number = _ENTRY.unpack_from(self._memory)
        return int(number), float(started)

    def close(self) -> None:
        self._memory.close()
