"""Submissions of a task that have ended in some way, and what is to be done about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_stages.slurm.jobs import Attempt, TaskEnd
from slime_stages.slurm.queue import JobInfo
from slime_stages.slurm.verdicts import Action, TaskRun, Verdict, judge

WAIT, RESUBMIT, RETRY, GIVE_UP, STOP = Action
GO_ON = "slime-stages iter --n 0 --executor slurm --run /runs/a"
LOGS = "slime-stages logs rollout --run /runs/a --iter 5 --shard 3"


def attempt(number: int = 0, *, stage: str = "rollout", job_id: str | None = "100", **fields: Any) -> Attempt:
    return Attempt(
        folder=Path(f"/runs/a/jobs/000005-{stage}/attempt-{number:03d}"),
        number=number,
        stage=stage,
        iteration=5,
        shards=(3,) if stage in ("rollout", "reward") else (None,),
        job_id=job_id,
        is_array=stage in ("rollout", "reward"),
        **fields,
    )


def ended(
    state: str | None,
    exit_code: int | None = None,
    message: str = "",
    *,
    stage: str = "rollout",
    nodes: str = "node1",
    reason: str = "",
    signal: int = 0,
    progress: int = 0,
    hint: str | None = None,
    extra: dict[str, Any] | None = None,
    failed_nodes: tuple[str, ...] = (),
    **fields: Any,
) -> TaskRun:
    """A task that ran for an hour. An exit code is what it told itself; without one it was killed."""
    info = JobInfo(
        job_id="100_0",
        state=state or "",
        reason=reason,
        exit_code=exit_code or 0,
        signal=signal,
        nodes=nodes,
        started=1000.0,
        ended=4600.0,
        failed_nodes=failed_nodes,
    )
    told = TaskEnd(exit_code=exit_code, message=message, hint=hint, progress=progress, extra=extra or {})
    return TaskRun(
        attempt=fields.pop("attempt", attempt(stage=stage)),
        info=info if state else None,
        end=told if exit_code is not None else None,
        shard=3 if stage in ("rollout", "reward") else None,
        **{"progress": progress, **fields},
    )


def verdict(*history: TaskRun, max_retries: int = 2) -> Verdict:
    return judge(history, max_retries=max_retries)


def action(*history: TaskRun, max_retries: int = 2) -> Action:
    return verdict(*history, max_retries=max_retries).action
