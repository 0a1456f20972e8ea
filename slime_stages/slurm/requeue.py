"""What a drained job does for itself: back into the queue under its own id, so that whoever depends on it waits."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from math import inf

from slime_stages.drain import INTERRUPT, SIGNALS, drain_reason, made_progress
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import journal_of, shard_manifest_path
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.commands import call_scheduler
from slime_stages.slurm.limits import ask_squeue, job_end_time, task_id
from slime_stages.stage import StageCall, read_config, read_run_plan, say
from slime_stages.weights.partial import saved_steps

MOST_RESTARTS = 30
NEAR_END_SECONDS = 600.0
"""A signal so shortly before the time limit is the warning of it; an earlier one is a preemption, or a person's."""


def requeue_self() -> bool:
    """Whether SLURM took this drained job back, which ends it within moments: write down the end before.

    False, and the chain decides: it was not drained, it got nowhere, it was put back often enough, it is being ended
    anyway (cancelled, preempted, over its limit), or SLURM refuses. Of several processes only the first one asks.
    """
    job = task_id()
    if job is None or not is_worth_requeue() or os.environ.get("SLURM_PROCID", "0") != "0":
        return False
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) >= MOST_RESTARTS:
        say(f"job {job} was put back into the queue {MOST_RESTARTS} times: not again")
        return False
    # a requeue would bring a job back that somebody has cancelled
    if ask_squeue("%T") != "RUNNING":
        return False
    try:
        answer = call_scheduler(["scontrol", "requeue", job])
    except SlimeStagesError as error:
        say(f"warning: job {job} was not put back into the queue: {error}")
        return False
    if answer.exit_code:
        say(f"warning: job {job} was not put back into the queue: {answer.complaint}")
    return answer.exit_code == 0


def is_worth_requeue() -> bool:
    """Whether this process was drained, and either left something to go on from or was stopped for somebody else."""
    reason = drain_reason()
    if reason in (None, INTERRUPT.name):  # who presses Ctrl-C wants it to end
        return False
    end = job_end_time()
    is_warning = end is not None and end - time.time() < NEAR_END_SECONDS
    is_signal = reason in {signal.Signals(number).name for number in SIGNALS}
    return made_progress() or (is_signal and not is_warning)


def progress_of(run: RunDir, call: StageCall, *, before: float = inf) -> int:
    """What the next attempt at a call goes on from: groups in a rollout's journal, or optimizer steps; 0 if nothing.

    Of a journal: what was in it at that Unix time.
    """
    if call.stage == "train":
        return saved_steps(run, call.iteration)
    if call.stage != "rollout":
        return 0
    if call.until is not None:
        return _progress_of_stream(run, call, before=before)
    try:
        plan = read_run_plan(run, call.iteration, call.split)
        return journal_of(run, plan, read_config(run, plan.config_revision), call).group_count(before=before)
    except SlimeStagesError:
        return 0


def _progress_of_stream(run: RunDir, call: StageCall, *, before: float) -> int:
    """Prompts of the shards that are committed, one iteration after the other, and the journal of the next one."""
    total = 0
    for iteration in range(call.iteration, call.until or 0):
        step = replace(call, iteration=iteration, until=None)
        try:
            plan = read_run_plan(run, iteration)
        except SlimeStagesError:
            return total
        if not shard_manifest_path(run, plan, "rollout", call.shard).exists():
            return total + progress_of(run, step, before=before)
        slice_ = plan.shards[call.shard or 0]
        total += slice_.stop - slice_.start
    return total
