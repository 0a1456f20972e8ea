"""What SLURM knows of jobs: one `squeue`, and one `sacct` for what `squeue` does not explain, however many jobs.

The controller's word counts for whatever it still knows; accounting lags some seconds behind. It is asked about jobs
that the controller has forgotten, and about what only it knows: earlier runs of a job, and the end of its steps.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slime_stages.errors import InternalError
from slime_stages.slurm.commands import SchedulerDown as SchedulerDown
from slime_stages.slurm.commands import ask_scheduler, call_scheduler
from slime_stages.slurm.listing import (
    NODE_AT_FAULT,
    SACCT_COLUMNS,
    SEPARATOR,
    SQUEUE_COLUMNS,
    base_of,
    parse_sacct,
    parse_squeue,
)
from slime_stages.slurm.listing import JobInfo as JobInfo
from slime_stages.slurm.nodes import expand_nodes

CLOCK_SLACK_SECONDS = 86_400.0
"""How much earlier than `since` accounting is searched: clocks and time zones may differ."""
LONGEST_LIST = 100_000
"""Bytes of job ids; Linux takes 131,072 in one word of a command."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What was found; a job that neither controller nor accounting knows is not in it."""

    jobs: Mapping[str, JobInfo] = field(default_factory=dict)
    has_accounting: bool = True
    """False if accounting was needed and is off or away: forgotten jobs then stay unknown."""

    def get(self, task_id: str) -> JobInfo | None:
        """A task, or the array that it is of, where SLURM lists that as a whole: one cancelled before it began."""
        return self.jobs.get(task_id) or self.jobs.get(base_of(task_id))

    def live(self) -> list[JobInfo]:
        return [job for job in self.jobs.values() if job.is_live]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The controller's settings that matter to whoever submits."""

    version: str
    cluster: str
    max_array_size: int
    """Array indices end below it."""
    max_job_count: int
    min_job_age_seconds: float
    """How long the controller remembers a job that has ended; then accounting alone does."""
    kill_wait_seconds: float
    has_accounting: bool
    requeues: bool
    """Whether jobs are requeued by default when their node fails."""


def query(name: str, job_ids: Collection[str], *, since: float) -> Queue:
    """All jobs of this name that the controller knows, and what accounting knows of `job_ids` besides.

    Ids may be of jobs or of tasks; `since` is when the earliest was submitted. SchedulerDown if nobody answers.
    """
    jobs = parse_squeue(ask_scheduler(squeue_command(name)))
    unexplained = _unexplained(jobs, {base_of(job_id) for job_id in job_ids})
    if not unexplained:
        return Queue(jobs)
    answer = call_scheduler(sacct_command(name, unexplained, since))
    if answer.exit_code != 0:
        return Queue(jobs, has_accounting=False)
    return Queue(_merged(jobs, parse_sacct(answer.stdout), unexplained))


def read_limits() -> Limits:
    """The controller's settings, as it tells them now."""
    settings = {}
    for line in ask_scheduler(["scontrol", "show", "config"]).splitlines():
        key, equals, value = line.partition("=")
        if equals:
            settings[key.strip()] = value.strip()
    try:
        return Limits(
            version=settings["SLURM_VERSION"],
            cluster=settings["ClusterName"],
            max_array_size=int(settings["MaxArraySize"]),
            max_job_count=int(settings["MaxJobCount"]),
            min_job_age_seconds=_seconds(settings["MinJobAge"]),
            kill_wait_seconds=_seconds(settings["KillWait"]),
            has_accounting=not settings["AccountingStorageType"].endswith(("/none", "(null)")),
            requeues=settings.get("JobRequeue", "1") != "0",
        )
    except (KeyError, ValueError) as error:
        raise InternalError(f"`scontrol show config` does not say {error}", hint="scontrol show config") from error


def scheduler_limits() -> Limits:
    """The controller's settings; asked once in a process."""
    return _limits_of(os.environ.get("SLURM_CONF"))


@functools.cache
def _limits_of(_cluster: str | None) -> Limits:
    return read_limits()


def squeue_command(name: str) -> list[str]:
    columns = ",".join(f"{column}:{width}" for column, width in SQUEUE_COLUMNS.items())
    return ["squeue", "--noheader", "--array", "--states=all", f"--name={name}", f"--Format={columns}"]


def sacct_command(name: str, base_ids: Iterable[str], since: float) -> list[str]:
    """Asks by ids, or by name where ids would be too long a word."""
    ids = ",".join(sorted(base_ids))
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(max(since - CLOCK_SLACK_SECONDS, 0.0)))
    chosen = f"--jobs={ids}" if len(ids) <= LONGEST_LIST else f"--name={name}"
    listed = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(SACCT_COLUMNS)}"]
    return ["sacct", "--duplicates", f"--starttime={start}", chosen, *listed]


def _unexplained(jobs: Mapping[str, JobInfo], base_ids: set[str]) -> set[str]:
    """Ids that the controller has forgotten, and those whose story it does not tell to the end."""
    known = {base_of(job_id) for job_id in jobs}
    partly = {base_of(job.job_id) for job in jobs.values() if job.state == "FAILED" or job.restarts}
    return (base_ids - known) | (base_ids & partly)


def _merged(known: Mapping[str, JobInfo], recorded: Mapping[str, JobInfo], asked: set[str]) -> dict[str, JobInfo]:
    """What is recorded as live, and unknown to the controller, is a record that nobody closed: left out."""
    jobs = dict(known)
    for job_id, record in recorded.items():
        current = known.get(job_id)
        if current is not None:
            is_memory = record.state == "OUT_OF_MEMORY" and current.state == "FAILED"
            state = record.state if is_memory else current.state
            jobs[job_id] = replace(current, state=state, failed_nodes=_failed_nodes(current, record))
        elif not record.is_live and base_of(job_id) in asked:
            jobs[job_id] = record
    return jobs


def _failed_nodes(current: JobInfo, record: JobInfo) -> tuple[str, ...]:
    """Those of earlier runs. The latest run on record is an earlier one while a task of an array waits to run again."""
    is_earlier = record.state in NODE_AT_FAULT and current.state not in NODE_AT_FAULT
    return tuple(dict.fromkeys([*record.failed_nodes, *(expand_nodes(record.nodes) if is_earlier else ())]))


def _seconds(text: str) -> float:
    return float(text.split()[0])
