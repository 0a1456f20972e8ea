"""Whether a submission may still make its output: it is being submitted, waits, runs, or is not listed yet."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slime_stages.slurm.jobs import Attempt, TaskEnd
from slime_stages.slurm.listing import JobInfo

UNLISTED_SECONDS = 180.0
"""How long a claim may go without a job, and a job be unknown to the scheduler's lists, before it counts as gone."""


def is_live(attempt: Attempt, shard: int | None, info: JobInfo | None, end: TaskEnd | None) -> bool:
    """`info` and `end` are what the scheduler knows of the shard's task, and what the task told at its end."""
    if attempt.task_id(shard) is None:
        return claimer_lives(attempt)
    if info is not None:
        return info.is_live
    return end is None and time.time() - (attempt.submitted or 0.0) < UNLISTED_SECONDS


def claimer_lives(attempt: Attempt) -> bool:
    """Whether the process that claimed the submission may still be talking to sbatch."""
    if time.time() - attempt.claimed > UNLISTED_SECONDS:
        return False
    host, _, pid = attempt.claimed_by.partition(":")
    return host != os.uname().nodename or Path(f"/proc/{pid}").exists()
