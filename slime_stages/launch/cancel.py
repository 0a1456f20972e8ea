"""Cancelling a run's jobs: first the chain is stopped, so that nothing is submitted behind one's back."""

from __future__ import annotations

import time

from slime_stages.errors import UsageError
from slime_stages.launch.chain_state import stop_chain
from slime_stages.launch.job_facts import has_scheduler
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import all_attempts

ROUNDS = 3
"""A job that was being submitted at that moment is found by the next look."""
PAUSE_SECONDS = 1.0


def cancel(run: RunDir, *, stage: str | None = None, iteration: int | None = None) -> int:
    """Cancel the live jobs of the run, or those of a stage or iteration; how many tasks that were.

    SchedulerDown if nobody answers; the chain has stopped then, and the same command goes on.
    """
    if not has_scheduler():
        raise UsageError(
            "there is no SLURM on this machine", hint=f"ssh LOGIN-NODE slime-stages cancel --run {run.root}"
        )
    from slime_stages.slurm.names import job_name
    from slime_stages.slurm.queue import query
    from slime_stages.slurm.submit import cancel_jobs

    what = " ".join(filter(None, (stage, None if iteration is None else f"iteration {iteration}"))) or "all jobs"
    if stage != "serve":  # rollouts go on without, and start their own engines
        again = f"slime-stages iter --n 0 --executor slurm --run {run.root}"
        stop_chain(run, f"{what} cancelled by `slime-stages cancel`", again)
    tasks: set[str] = set()
    for attempt in range(ROUNDS):
        live = {info.job_id for info in query(job_name(run), (), since=0.0).live() if info.state != "COMPLETING"}
        found = _chosen(run, live, stage, iteration) - tasks
        if found:
            cancel_jobs(sorted({_base(task) for task in found}))
            tasks |= found
        elif attempt:
            break
        time.sleep(PAUSE_SECONDS)
    return len(tasks)


def _chosen(run: RunDir, live: set[str], stage: str | None, iteration: int | None) -> set[str]:
    if stage is None and iteration is None:
        return live
    jobs = {
        attempt.job_id
        for attempt in all_attempts(run)
        if stage in (None, attempt.stage) and iteration in (None, attempt.iteration)
    }
    return {task for task in live if _base(task) in jobs}


def _base(task: str) -> str:
    return task.partition("_")[0]
