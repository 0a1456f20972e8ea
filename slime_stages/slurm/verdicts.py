"""What to do about a task that is not committed, by how it ended: the table for every state that SLURM knows.

Pure: whoever calls has looked at the scheduler, the task's own record and its log, and acts on the verdict. A task is
judged by all its submissions, which lie on disk, so that a count survives whoever counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slime_stages.slurm.advice import words_of
from slime_stages.slurm.endings import TaskRun, essence_of, exit_code_of, got_further, kind_of
from slime_stages.slurm.nodes import expand_nodes

__all__ = ["FREE_LIMIT", "NODE_LIMIT", "TABLE", "Action", "Row", "TaskRun", "Verdict", "judge", "nodes_to_avoid"]

FREE_LIMIT = 20
"""Free resubmissions without getting any further; then the cluster, not the work, is what a person must look at."""
NODE_LIMIT = 2
"""Failures after which a node is not used any more."""


class Action(Enum):
    """What to do."""

    WAIT = "wait"
    RESUBMIT = "resubmit free"
    """Not its fault: submitted again without being counted."""
    RETRY = "retry counted"
    """Submitted again, at most `max_retries` times."""
    GIVE_UP = "give up"
    """Submitting again would not help: the chain stops."""
    STOP = "stop"
    """A person wants it so: the chain stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do about a task, and why."""

    action: Action
    reason: str
    """A clause for people, as in `ran out of memory`."""
    advice: str | None = None
    """The next command or edit."""
    exclude: tuple[str, ...] = ()
    """Nodes to keep away from."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. Words in braces are filled in; see `advice.py`."""

    action: Action
    reason: str
    advice: str | None = None


WAIT, RESUBMIT, RETRY, GIVE_UP, STOP = Action
LOGS, HINT, GO_ON = "{logs}", "{hint}", "{go_on}"
RELEASE = "scontrol release {job}, or scancel {job} and then {go_on}"

TABLE = {
    # it is alive
    "PENDING": Row(WAIT, "waits in the queue"),
    "CONFIGURING": Row(WAIT, "its nodes are booting"),
    "POWER_UP_NODE": Row(WAIT, "its nodes are booting"),
    "RUNNING": Row(WAIT, "runs"),
    "EXPEDITING": Row(WAIT, "is put back into the queue, ahead of others"),
    "RESIZING": Row(WAIT, "changes its size"),
    "SIGNALING": Row(WAIT, "is being signalled"),
    "SUSPENDED": Row(WAIT, "is suspended: other jobs have its cores", "scontrol resume {job}, if you may"),
    "STOPPED": Row(WAIT, "was stopped by a signal", "scancel --signal=CONT {job}"),
    "COMPLETING": Row(WAIT, "is ending"),
    "STAGE_OUT": Row(WAIT, "is copying its burst buffer"),
    "UPDATE_DB": Row(WAIT, "is ending"),
    "REQUEUED": Row(WAIT, "is put back into the queue"),
    "REQUEUE_FED": Row(WAIT, "is put back into the queue of another cluster of the federation"),
    "REQUEUE_HOLD": Row(WAIT, "was put back into the queue and is held", RELEASE),
    "SPECIAL_EXIT": Row(WAIT, "was put back into the queue by the site and is held", RELEASE),
    "RESV_DEL_HOLD": Row(WAIT, "is held: its reservation was removed", RELEASE),
    # it is queued, but will not start; by squeue's reason
    "queued: held": Row(WAIT, "is held", RELEASE),
    "queued: impossible": Row(WAIT, "cannot start: {why}", "edit {sbatch}, scancel {job}, then {go_on}"),
    "queued: launch failed": Row(RESUBMIT, "could not be launched{on_nodes} and is held"),
    "queued: dependency": Row(RESUBMIT, "waits for a job that can never let it go on"),
    # the cluster ended it
    "PREEMPTED": Row(RESUBMIT, "was preempted"),
    "NODE_FAIL": Row(RESUBMIT, "lost its node{named}"),
    "BOOT_FAIL": Row(RESUBMIT, "its node{named} did not boot"),
    "LAUNCH_FAILED": Row(RESUBMIT, "could not be launched{on_nodes}"),
    "RECONFIG_FAIL": Row(RESUBMIT, "its node{named} could not be set up"),
    "REVOKED": Row(RESUBMIT, "was started on another cluster of the federation"),
    "CANCELLED: dependency": Row(RESUBMIT, "was cancelled, because a job it waited for cannot let it go on"),
    "TIMEOUT": Row(
        GIVE_UP, "ran into its time limit{after} and got no further", "{go_on} --slurm-{stage}-time {longer}"
    ),
    "TIMEOUT: got further": Row(RESUBMIT, "ran into its time limit{after}; it had got further than before"),
    "DEADLINE": Row(GIVE_UP, "could not end before its deadline", "take --deadline out of {sbatch}, then {go_on}"),
    "OUT_OF_MEMORY": Row(GIVE_UP, "ran out of memory{size}", "{memory_advice}"),
    # a person ended it
    "CANCELLED": Row(STOP, "was cancelled", GO_ON),
    # it ended itself; by its exit code
    "exit 2": Row(GIVE_UP, "{message}", HINT),
    "exit 65": Row(GIVE_UP, "{message}", HINT),
    "exit 66: gate closed": Row(RESUBMIT, "what it reads was not there yet"),
    "exit 66": Row(RETRY, "{message}", HINT),
    "exit 75: got further": Row(RESUBMIT, "made room before it was done; it had got further than before"),
    "exit 75": Row(RETRY, "{message}", HINT),
    "GPU memory": Row(GIVE_UP, "ran out of GPU memory{size}", "{gpu_advice}"),
    "node trouble": Row(RETRY, "{nodes} has trouble: {message}", LOGS),
    "killed": Row(RETRY, "was killed{signal}, as for memory or by a person on the node", "{memory_advice}"),
    "told to end": Row(RETRY, "was told to end before it could drain", LOGS),
    "FAILED": Row(RETRY, "{message}", HINT),
    "COMPLETED": Row(RETRY, "ended without an error and committed nothing", LOGS),
    # it is gone
    "never submitted": Row(RESUBMIT, "was claimed, and never submitted"),
    "vanished": Row(RETRY, "job {job} is gone without a trace", LOGS),
    "unknown": Row(RETRY, "ended in a state unknown here: {state}", LOGS),
}
"""Every way in which a task can stand → what to do about it."""

NODE_ROWS = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "queued: launch failed")


def judge(history: Sequence[TaskRun], *, max_retries: int) -> Verdict:
    """What to do about a task: `history` is all its submissions, oldest first, of which the last one counts."""
    kinds = kinds_of(history)
    last = history[-1]
    row, words = TABLE[kinds[-1]], words_of(last, exit_code_of(last))
    action, reason = row.action, row.reason.format(**words)
    advice = row.advice.format(**words) if row.advice else None
    if action is RESUBMIT and (times := _times_without_progress(history, kinds)) > FREE_LIMIT:
        action, reason = GIVE_UP, f"{reason}; that was so, or alike, {times} times"
    elif action is RETRY:
        times = sum(TABLE[each].action is RETRY for each in kinds)
        if _is_same_again(history, kinds):
            action, reason = GIVE_UP, f"{reason}; the same as before"
        elif times > max_retries:
            action, reason = GIVE_UP, f"{reason}; that was failure {times}, of {max_retries} that are retried"
    advice = advice or (words["logs"] if action is GIVE_UP else None)
    needs_advice = action in (GIVE_UP, STOP, WAIT)
    return Verdict(
        action=action, reason=reason, advice=advice if needs_advice else None, exclude=nodes_to_avoid(history)
    )


def kinds_of(history: Sequence[TaskRun]) -> list[str]:
    """The row of the table for each submission."""
    kinds = [kind_of(run, history[:position]) for position, run in enumerate(history)]
    return [kind if kind in TABLE else "unknown" for kind in kinds]


def nodes_to_avoid(history: Sequence[TaskRun]) -> tuple[str, ...]:
    """Nodes that failed twice, or that a task had trouble with, and those avoided before."""
    failures, avoided = Counter[str](), set[str]()
    for run, kind in zip(history, kinds_of(history), strict=True):
        avoided.update(run.attempt.excluded_nodes)
        nodes = expand_nodes(run.info.nodes) if run.info else []
        failures.update(node for names in (run.info.failed_nodes if run.info else ()) for node in expand_nodes(names))
        failures.update(nodes if kind in NODE_ROWS else ())
        avoided.update(nodes if kind == "node trouble" and len(nodes) == 1 else ())
    return tuple(sorted(avoided | {node for node, count in failures.items() if count >= NODE_LIMIT}))


def _times_without_progress(history: Sequence[TaskRun], kinds: Sequence[str]) -> int:
    """How often it was free, up to now, since it last got further."""
    since = next((at for at in reversed(range(len(history))) if got_further(history[at], history[:at])), 0)
    return sum(TABLE[kind].action is RESUBMIT for kind in kinds[since:])


def _is_same_again(history: Sequence[TaskRun], kinds: Sequence[str]) -> bool:
    """Whether the last error is one of before: the same exit code and words, but for numbers. What has no error
    of its own is never the same."""
    if kinds[-1] in ("exit 75", "told to end", "vanished", "node trouble", "COMPLETED"):
        return False
    errors = [(kind, exit_code_of(run), essence_of(run)) for run, kind in zip(history, kinds, strict=True)]
    return errors[-1] in errors[:-1]
