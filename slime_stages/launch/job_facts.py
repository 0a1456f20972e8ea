"""What jobs do about outputs that are not there: which run, which wait, which have failed, and why.

From the submissions on disk, from what their tasks told at their end, and from one question to the scheduler. Where
there is no scheduler, or it does not answer, the disk alone is believed, and that is said.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.chain_state import Chain, read_chain
from slime_stages.launch.overview import IterationOverview, OpenOutput, RunJobs, StageOverview, TaskFact
from slime_stages.lineage import manifests_kept
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, attempts_of, read_end, streams_over
from slime_stages.slurm.liveness import is_live
from slime_stages.stage import read_config, read_run_plan

if TYPE_CHECKING:
    from slime_stages.slurm.endings import TaskRun
    from slime_stages.slurm.queue import JobInfo, Queue

GOING_ON = ("failed", "running", "queued", "submitted")
"""What goes on with an output that is not there; a task of another word is over, and was not at fault."""
QUEUED_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
MAX_RETRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """An output that is not there, with its submissions."""

    part: IterationOverview
    stage: str
    output: OpenOutput
    attempts: tuple[Attempt, ...]
    """Oldest first; one at least."""


def with_jobs(
    run: RunDir, iterations: Sequence[IterationOverview], evaluations: Sequence[IterationOverview]
) -> tuple[tuple[IterationOverview, ...], tuple[IterationOverview, ...], RunJobs]:
    """The overviews with what jobs do about what is not there."""
    units = [unit for part in (*iterations, *evaluations) for unit in _units(run, part)]
    queue, jobs = ask_scheduler(run, [attempt for unit in units for attempt in unit.attempts])
    chain = _chain(run)
    facts: dict[tuple[int, str], list[TaskFact]] = {}
    with manifests_kept():
        for unit in units:
            fact = _fact(run, unit, queue, chain, is_silent=jobs.silence is not None)
            if fact is not None:
                facts.setdefault((fact.iteration, fact.split), []).append(fact)
    return (
        tuple(_with_facts(part, facts.get((part.iteration, part.split), [])) for part in iterations),
        tuple(_with_facts(part, facts.get((part.iteration, part.split), [])) for part in evaluations),
        jobs,
    )


def ask_scheduler(run: RunDir, attempts: Iterable[Attempt]) -> tuple[Queue | None, RunJobs]:
    """What the scheduler knows of these submissions, and all live jobs of the run: one question."""
    submitted = [attempt for attempt in attempts if attempt.job_id is not None]
    if not has_scheduler():
        return None, RunJobs(silence="there is no squeue on this machine")
    from slime_stages.slurm.names import job_name
    from slime_stages.slurm.queue import query

    ids = {attempt.job_id for attempt in submitted if attempt.job_id}
    since = min((attempt.submitted or 0.0 for attempt in submitted), default=time.time())
    try:
        queue = query(job_name(run), ids, since=since)
    except SlimeStagesError as error:
        return None, RunJobs(silence=error.message)
    live = [info for info in queue.live() if info.is_live]
    queued = Counter(info.reason or "None" for info in live if info.state in QUEUED_STATES)
    return queue, RunJobs(running=len(live) - queued.total(), queued=dict(queued.most_common()))


def has_scheduler() -> bool:
    return shutil.which("squeue") is not None


def _chain(run: RunDir) -> Chain | None:
    with suppress(SlimeStagesError):
        return read_chain(run)
    return None


def _units(run: RunDir, part: IterationOverview) -> Iterable[_Unit]:
    for stage, overview in part.stages.items():
        if not overview.open_outputs:
            continue
        try:
            attempts = _submissions(run, stage, part)
        except SlimeStagesError:
            continue
        for output in overview.open_outputs:
            if mine := tuple(attempt for attempt in attempts if output.shard in attempt.shards):
                yield _Unit(part=part, stage=stage, output=output, attempts=mine)


def _submissions(run: RunDir, stage: str, part: IterationOverview) -> list[Attempt]:
    """With those that began at an earlier iteration and go on to this one."""
    own = attempts_of(run, stage, part.iteration, part.split)
    if (stage, part.split) != ("rollout", "train"):
        return own
    plan = read_run_plan(run, part.iteration)
    if not read_config(run, plan.config_revision).rollout.rollout_streaming:
        return own
    return [*streams_over(run, part.iteration, [output.shard for output in part.stages[stage].open_outputs]), *own]


def _fact(run: RunDir, unit: _Unit, queue: Queue | None, chain: Chain | None, *, is_silent: bool) -> TaskFact | None:
    """None if the last submission says nothing about the output as it is now."""
    attempt, shard = unit.attempts[-1], unit.output.shard
    task = attempt.task_id(shard)
    info = queue.get(task) if queue is not None and task is not None else None
    end = read_end(attempt, shard)
    is_at_it = is_live(attempt, shard, info, end)
    if task is None and not is_at_it:
        return None  # given up before it was submitted
    fact = TaskFact(
        title=replace(attempt.call(run, shard), iteration=unit.part.iteration).title,
        stage=unit.stage,
        iteration=unit.part.iteration,
        split=attempt.split,
        shard=shard,
        activity="queued",
        reason="is being submitted",
        advice=None,
        attempt=attempt.number,
        job=task,
        log=str(attempt.log_paths(shard)[1]),
        since=attempt.submitted,
    )
    if is_at_it:
        return fact if info is None else _live_fact(fact, unit, info)
    if info is None and end is None and is_silent:
        return replace(fact, activity="submitted", reason=f"was submitted as job {task}")
    if (end is not None and end.exit_code == 0) or _is_older_than_output(run, unit, end.finished if end else None):
        return None
    return _ended_fact(fact, _history(run, unit, queue, chain), unit, chain)


def _live_fact(fact: TaskFact, unit: _Unit, info: JobInfo) -> TaskFact:
    if info.state not in QUEUED_STATES:
        where = f" on {info.nodes}" if info.nodes else ""
        return replace(fact, activity="running", reason=f"runs{where}", since=info.started or fact.since)
    from slime_stages.slurm.endings import TaskRun
    from slime_stages.slurm.verdicts import judge

    run = TaskRun(attempt=unit.attempts[-1], info=info, end=None, shard=fact.shard)
    verdict = judge([run], max_retries=MAX_RETRIES)
    why = f" ({info.reason})" if info.reason not in ("", "None") else ""
    return replace(fact, reason=f"{verdict.reason}{why}", advice=verdict.advice, since=info.submitted or fact.since)


def _ended_fact(fact: TaskFact, history: Sequence[TaskRun], unit: _Unit, chain: Chain | None) -> TaskFact:
    from slime_stages.slurm.verdicts import Action, judge

    verdict = judge(history, max_retries=chain.max_retries if chain else MAX_RETRIES)
    last = history[-1]
    ended = last.end.finished if last.end else last.info.ended if last.info else None
    is_failure = verdict.action in (Action.RETRY, Action.GIVE_UP, Action.STOP)
    return replace(
        fact,
        activity="failed" if is_failure else unit.output.state,
        reason=verdict.reason,
        advice=verdict.advice,
        since=ended or fact.since,
    )


def _history(run: RunDir, unit: _Unit, queue: Queue | None, chain: Chain | None) -> list[TaskRun]:
    """Submissions that count: those before the chain was begun anew do not, but for the last one."""
    from slime_stages.slurm.endings import TaskRun

    shard, begun = unit.output.shard, chain.begun if chain else 0.0
    counted = [attempt for attempt in unit.attempts if (attempt.submitted or attempt.claimed) >= begun]
    history = []
    for attempt in counted or unit.attempts[-1:]:
        task = attempt.task_id(shard)
        info = queue.get(task) if queue is not None and task is not None else None
        known = TaskRun(attempt=attempt, info=info, end=read_end(attempt, shard), shard=shard)
        history.append(_with_evidence(known, run, unit, chain))
    return history


def _with_evidence(task: TaskRun, run: RunDir, unit: _Unit, chain: Chain | None) -> TaskRun:
    """With what the chain's verdict is founded on; a task outside of any chain has its log to speak for it."""
    from slime_stages.launch.evidence import last_lines, with_evidence

    if chain is not None:
        with suppress(SlimeStagesError):
            return with_evidence(task, run, read_run_plan(run, unit.part.iteration, unit.part.split), chain)
    return replace(task, log=last_lines(task.attempt.log_paths(task.shard)[1]))


def _is_older_than_output(run: RunDir, unit: _Unit, ended: float | None) -> bool:
    """Whether what is there now, and is stale or corrupt, was made after the job had ended."""
    if unit.output.state == "missing" or ended is None:
        return False
    count = unit.part.stages[unit.stage].shards
    path = run.manifest_path(unit.stage, unit.part.iteration, unit.output.shard, count, unit.part.split)
    with suppress(OSError):
        return path.stat().st_mtime > ended
    return False


def _with_facts(part: IterationOverview, facts: Sequence[TaskFact]) -> IterationOverview:
    if not facts:
        return part
    stages = {
        name: replace(stage, activity=_activity(stage, [fact for fact in facts if fact.stage == name]))
        for name, stage in part.stages.items()
    }
    return replace(part, stages=stages, tasks=tuple(facts))


def _activity(stage: StageOverview, facts: Sequence[TaskFact]) -> dict[str, int]:
    words = {output.shard: output.state for output in stage.open_outputs}
    words.update({fact.shard: fact.activity for fact in facts})
    counts = Counter(words.values())
    counts["committed"] = stage.counts["committed"]
    order = (*GOING_ON, "corrupt", "stale", "missing", "committed")
    return {word: counts[word] for word in order if counts[word]}
