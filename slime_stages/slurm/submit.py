"""Handing an attempt to sbatch, once, however often the controller has to be asked.

    attempt = claim_attempt(run, "rollout", 12, shards=(0, 1, 2), after=0)
    header = read_header(Path("sbatch/rollout.sbatch"), "rollout")
    attempt = submit_attempt(Submission(run=run, attempt=attempt, header=header))

A controller that is away is waited for. It may have taken a job and its answer got lost: before sbatch is called
again, the queue is looked through for the attempt's comment.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from slime_stages.errors import InternalError, RetryableError, SlimeStagesError, UsageError
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.commands import (
    CONTROLLER_AWAY,
    Answer,
    SchedulerDown,
    ask_scheduler,
    call_scheduler,
)
from slime_stages.slurm.environment import submission_environment
from slime_stages.slurm.jobs import Attempt
from slime_stages.slurm.names import comment_of, job_name, split_shards
from slime_stages.slurm.submission import Submission
from slime_stages.stage import say

__all__ = [
    "cancel_jobs",
    "find_submitted",
    "job_name",
    "set_dependency",
    "split_shards",
    "submit_attempt",
]

PAUSES = (2.0, 4.0, 8.0, 16.0)
"""Before each look whether a job is there whose submission got no answer; then sbatch is called again."""
SBATCH_SECONDS = 120.0
"""sbatch itself tries for a while."""

FULL = re.compile(r"max\w*submit|submit limit|maxjobcount|queue full|array.*limit.*reached", re.IGNORECASE)
"""Words of a limit on how many jobs may be queued at once."""


class QueueFull(RetryableError):
    """As many jobs are queued as this user may have."""


def submit_attempt(submission: Submission) -> Attempt:
    """Submit a claimed attempt; the attempt with its job's id, saved.

    UsageError if sbatch refuses what the header asks for, QueueFull if it may take no more now: then the attempt's
    folder is gone. SchedulerDown if the controller stays away; the folder stays, since the job may have been taken
    nevertheless: see `find_submitted`.
    """
    from slime_stages.slurm.script import write_scripts

    attempt = replace(
        submission.attempt, dependencies=tuple(submission.dependencies), excluded_nodes=tuple(submission.exclude)
    )
    try:
        attempt.save()
        job_id = _submit(submission, write_scripts(submission))
    except (UsageError, QueueFull):
        shutil.rmtree(attempt.folder)
        raise
    return attempt.with_job(job_id, is_array=submission.is_array)


def find_submitted(run: RunDir, attempt: Attempt) -> str | None:
    """The id of the attempt's job in the queue; for an attempt whose submitter died without an answer.

    SchedulerDown if the controller stays away.
    """
    return next(iter(_jobs_of(run, attempt)), None)


def set_dependency(job_id: str, dependencies: Sequence[str]) -> bool:
    """Let a pending job wait for these jobs instead; False if it is pending no more."""
    value = "afterany:" + ":".join(dependencies) if dependencies else ""
    return _change(["scontrol", "update", f"JobId={job_id}", f"Dependency={value}"])


def cancel_jobs(job_ids: Collection[str]) -> None:
    """Cancel jobs, and single tasks such as `123_4`; those that have ended already are no error."""
    if job_ids:
        _change(["scancel", *job_ids])


def _change(words: Sequence[str]) -> bool:
    """Whether SLURM did as told; SchedulerDown if it does not answer."""
    answer = call_scheduler(words)
    if answer.exit_code and CONTROLLER_AWAY.search(answer.stderr):
        ask_scheduler(["scontrol", "ping"])
        answer = call_scheduler(words)
    return answer.exit_code == 0


def _submit(submission: Submission, script: Path) -> str:
    """Call sbatch until it says yes or no; the job's id."""
    run, attempt = submission.run, submission.attempt
    environment = submission_environment(submission.header.directives)
    for number, pause in enumerate(PAUSES):
        answer = call_scheduler(["sbatch", "--parsable", str(script)], environment=environment, seconds=SBATCH_SECONDS)
        if answer.exit_code == 0:
            job_id = _job_id(answer) or _found(submission, answer)
            if number:
                cancel_jobs([other for other in _jobs_of(run, attempt) if other != job_id])
            return job_id
        if not CONTROLLER_AWAY.search(answer.stderr):
            raise _refusal(submission, answer)
        say(f"sbatch got no answer: {_told(answer)}")
        # the controller may still have to read our request when it is back and already answers others
        _jobs_of(run, attempt)
        time.sleep(pause)
        if (found := find_submitted(run, attempt)) is not None:
            return found
    raise SchedulerDown(
        f"the SLURM controller does not answer sbatch: {_told(answer)}",
        hint="type the same command again; what was submitted is not submitted twice",
    )


def _jobs_of(run: RunDir, attempt: Attempt) -> list[str]:
    """The attempt's jobs in the queue, by their comment; more than one if a request was taken and its answer lost."""
    name, comment = f"--name={job_name(run)}", comment_of(run, attempt)
    found: dict[str, None] = {}
    for line in ask_scheduler(["squeue", "--noheader", "--states=all", name, "--format=%F|%k"]).splitlines():
        job_id, _, said = line.strip().partition("|")
        if said == comment or said.startswith(f"{comment}; "):
            found[job_id] = None
    return list(found)


def _job_id(answer: Answer) -> str | None:
    ids = re.findall(r"^(\d+)(?:;\S*)?$", answer.stdout, re.MULTILINE)
    return str(ids[-1]) if ids else None


def _found(submission: Submission, answer: Answer) -> str:
    """The job's id by its comment, where something else than an id came from sbatch."""
    job_id = find_submitted(submission.run, submission.attempt)
    if job_id is None:
        raise InternalError(f"sbatch succeeded and named no job: {answer.stdout!r} {answer.stderr!r}")
    return job_id


def _refusal(submission: Submission, answer: Answer) -> SlimeStagesError:
    words = _told(answer)
    if FULL.search(words):
        return QueueFull(
            f"SLURM takes no more jobs of yours now: {words}",
            hint="type the same command again when some have ended, or queue fewer with --lookahead",
        )
    place = submission.header.place_of_refusal(words)
    return UsageError(
        f"{place}: sbatch refuses {submission.attempt.stage}'s job: {words}",
        hint=f"edit it, or give --slurm-{submission.header.stage}-OPTION VALUE on the command line",
    )


def _told(answer: Answer) -> str:
    """All that a command said, in one line, without its own name."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line).strip() for line in answer.stderr.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit code {answer.exit_code}"
