"""How long this job may still run. Without SLURM, or without an answer from it, nobody knows: never an error."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import datetime
from functools import cache

from slime_stages.slurm.commands import command_environment

QUERY_TIMEOUT_SECONDS = 5.0
EXIT_SECONDS = 15.0
"""For ending engines and processes and being gone."""

SHORTEST_DRAIN_SECONDS, LONGEST_DRAIN_SECONDS = 5.0, 300.0
"""Whoever stops a process gives it some seconds before the kill; nobody waits for hours."""


def task_id() -> str | None:
    """SLURM's id of this job, `123`, or `123_4` for a task of an array; None outside of SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


@cache
def job_end_time() -> float | None:
    """Unix time at which SLURM ends this job, as it was first told; at most one query a process."""
    told = os.environ.get("SLURM_JOB_END_TIME") if task_id() else None
    end = _read_time(told) if told else _ask_for_end()
    return end if end is not None and end > time.time() else None


def drain_seconds() -> float:
    """How long work in flight may go on after a signal. Asks anew: a preemption moves the end of the job."""
    end = _ask_for_end() or job_end_time()
    left = 0.0 if end is None else end - time.time() - EXIT_SECONDS
    return min(max(left, SHORTEST_DRAIN_SECONDS), LONGEST_DRAIN_SECONDS)


def ask_squeue(field: str) -> str | None:
    """One of squeue's fields of this job; times come in seconds since 1970."""
    job = task_id()
    if job is None:
        return None
    try:
        done = subprocess.run(
            ["squeue", "--noheader", "--jobs", job, "--format", field],
            env=command_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def _ask_for_end() -> float | None:
    answer = ask_squeue("%e")
    return None if answer is None else _read_time(answer)


def _read_time(text: str) -> float | None:
    """Of a job without a limit SLURM says NONE, N/A, Unknown or UNLIMITED."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
