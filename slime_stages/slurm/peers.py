"""Several processes of one job: the first one tells the end, for all.

`srun` ends them all when one fails, so that the others let the first one finish before they go; but for a crash, which
one of them may be alone with while the first one waits for it: that is told at once.
"""

from __future__ import annotations

import os
import signal
import time

from slime_stages.drain import drain_reason, made_progress
from slime_stages.slurm.jobs import Attempt, TaskEnd, read_end, write_end

CRASHES = (70,)
PATIENCE_SECONDS = 60.0
"""For the first process to tell the end and to see to the chain."""
POLL_SECONDS = 0.2


def is_first_process() -> bool:
    return os.environ.get("SLURM_PROCID", "0") == "0"


def may_be_ended_by_a_peer() -> bool:
    """Whether the signal that ended this process may come from `srun`, because another one failed."""
    count = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    return count > 1 and drain_reason() == signal.SIGTERM.name and not made_progress()


def failure_of_a_peer(attempt: Attempt, shard: int | None, end: TaskEnd) -> TaskEnd | None:
    """The crash that another process of this job has told, if this one ends because of it."""
    told = read_end(attempt, shard)
    return told if end.exit_code and told is not None and _is_same_run(told, end) else None


def leave_after_first(attempt: Attempt, shard: int | None, end: TaskEnd) -> int:
    """The end of a process that is not the first one; its exit code."""
    if end.exit_code == 0:
        return 0
    if end.exit_code not in CRASHES:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(end.exit_code))  # srun's, when the first one has gone
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            told = read_end(attempt, shard)
            if told is not None and _is_same_run(told, end) and told.exit_code == 0:
                return 0
            time.sleep(POLL_SECONDS)
    told = read_end(attempt, shard)
    if told is None or told.restarts < end.restarts:
        write_end(attempt, shard, end)
    return end.exit_code


def _is_same_run(one: TaskEnd, other: TaskEnd) -> bool:
    return (one.job_id, one.restarts) == (other.job_id, other.restarts)
