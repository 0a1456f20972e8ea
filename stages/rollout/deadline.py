"""When a job is to begin nothing more, and to wait for nothing more, so that it ends by itself."""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass, field

from slime_stages.slurm.limits import EXIT_SECONDS


@dataclass(slots=True, kw_only=True)
class Deadline:
    """Of a job's end, by how long groups have taken so far."""

    job_end: float | None
    """Unix time; None: not known."""
    group_count: int
    """Of the shard: all of them are to be written at the end."""
    _seconds: list[float] = field(default_factory=list)
    """That finished groups took, in order."""
    _record_seconds: float = 0.0

    def note(self, seconds: float, record_seconds: float) -> None:
        """A group has finished, and was recorded."""
        insort(self._seconds, seconds)
        self._record_seconds += record_seconds

    @property
    def stop_time(self) -> float:
        """Unix time from which the rest of the job is needed to write and to leave."""
        if self.job_end is None:
            return float("inf")
        mean = self._record_seconds / max(1, len(self._seconds))
        return self.job_end - EXIT_SECONDS - 2 * mean * self.group_count

    def allows_another(self) -> bool:
        """Whether 19 of 20 groups would be finished in time, were they begun now."""
        usual = self._seconds[-(len(self._seconds) // 20) - 1] if self._seconds else 0.0
        return time.time() + usual <= self.stop_time
