"""What a chain knows of every job it needs: which outputs are there, which are on their way, what became of others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slime_stages.config import Config
from slime_stages.errors import MissingInputError
from slime_stages.launch.chain_state import Chain
from slime_stages.launch.evidence import with_evidence
from slime_stages.launch.job_graph import JobKey, PlannedJob
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan
from slime_stages.launch.states import state_of
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.commit import wait_for_file
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.slurm.jobs import Attempt, attempts_of, read_end, streams_over
from slime_stages.slurm.liveness import claimer_lives, is_live
from slime_stages.slurm.queue import JobInfo, Queue, query
from slime_stages.slurm.submit import find_submitted, job_name
from slime_stages.slurm.verdicts import TaskRun
from slime_stages.stage import StageCall, State, read_config

VISIBLE_SECONDS = 60.0
"""How long a manifest that its task says it committed may take to be seen from another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One output that the chain needs."""

    job: JobKey
    shard: int | None
    state: State
    history: tuple[TaskRun, ...]
    """Tasks that were to make it and have ended, oldest first."""
    live: tuple[tuple[Attempt, JobInfo | None], ...]
    """Submissions that are in the queue or run; None: just submitted, the scheduler does not list it yet."""

    @property
    def title(self) -> str:
        """For people: `rollout 12/3`."""
        where = f"{self.job.stage} {self.job.iteration}" + ("" if self.shard is None else f"/{self.shard}")
        return where if self.job.split == "train" else f"{where} {self.job.split}"

    @property
    def queued(self) -> list[TaskRun]:
        """Its submissions that wait in the queue."""
        return [
            TaskRun(attempt=attempt, info=info, end=None, shard=self.shard)
            for attempt, info in self.live
            if info is not None and info.state == "PENDING"
        ]

    @property
    def is_wanted(self) -> bool:
        return not self.state.is_fresh and not self.live


@dataclass(slots=True, kw_only=True)
class Survey:
    """Everything above, read once."""

    run: RunDir
    units: dict[JobKey, list[Unit]] = field(default_factory=dict)
    attempts: dict[JobKey, list[Attempt]] = field(default_factory=dict)

    def live_jobs(self, key: JobKey) -> list[str]:
        """Ids of the jobs that work on it, or wait to."""
        found = {attempt.job_id for unit in self.units.get(key, ()) for attempt, _ in unit.live if attempt.job_id}
        return sorted(found)

    def pending(self, key: JobKey) -> list[Attempt]:
        """Submissions of which no task has started."""
        found: dict[Path, tuple[Attempt, bool]] = {}
        for unit in self.units.get(key, ()):
            for attempt, info in unit.live:
                started = info is not None and info.state != "PENDING"
                found[attempt.folder] = (attempt, found.get(attempt.folder, (attempt, False))[1] or started)
        return [attempt for attempt, started in found.values() if attempt.job_id and not started]

    def is_whole(self, key: JobKey) -> bool:
        return all(unit.state.is_fresh for unit in self.units.get(key, ()))

    def next_number(self, key: JobKey) -> int:
        own = [attempt.number for attempt in self.attempts.get(key, ()) if attempt.iteration == key.iteration]
        return max(own, default=-1) + 1


def survey(run: RunDir, jobs: Sequence[PlannedJob], chain: Chain, *, ended: str | None = None) -> Survey:
    """Look at the manifests, at the jobs' folders, and once at the scheduler.

    `ended` is the id of the task that asks, at its end: SLURM still has it running.
    """
    keys = dict.fromkeys([key for job in jobs for key in (job.key, *job.depends_on)])
    attempts = {key: [_adopted(run, attempt) for attempt in _attempts(run, key)] for key in keys}
    submitted = [attempt for found in attempts.values() for attempt in found if attempt.job_id]
    since = min((attempt.submitted or 0.0 for attempt in submitted), default=time.time())
    ids = [attempt.job_id for attempt in submitted if attempt.job_id]
    queue = query(job_name(run), ids, since=since) if ids else None
    found = Survey(run=run, attempts=attempts)
    shards = {job.key: job.shards for job in jobs}
    for key in keys:
        found.units[key] = list(_units(run, key, shards.get(key), attempts[key], queue, chain, ended))
    return found


def _attempts(run: RunDir, key: JobKey) -> list[Attempt]:
    """Submissions that were to make it; a stream's lies with the iteration that it began at."""
    own = attempts_of(run, key.stage, key.iteration, key.split)
    if not is_streamed(run, key):
        return own
    begun = {shard for attempt in own for shard in attempt.shards}
    return [*streams_over(run, key.iteration, set(range(ensure_plan(run, key.iteration).shard_count)) - begun), *own]


def is_streamed(run: RunDir, key: JobKey) -> bool:
    """Whether one job goes on from this rollout to the next iteration's."""
    if (key.stage, key.split) != ("rollout", "train"):
        return False
    return read_config(run, ensure_plan(run, key.iteration).config_revision).rollout.rollout_streaming


def _adopted(run: RunDir, attempt: Attempt) -> Attempt:
    """The attempt, with the job that its submitter died over before it could write down the id."""
    if attempt.job_id is not None or claimer_lives(attempt):
        return attempt
    job_id = find_submitted(run, attempt)
    return attempt if job_id is None else attempt.with_job(job_id, is_array=len(attempt.shards) > 1)


def _units(
    run: RunDir,
    key: JobKey,
    shards: Sequence[int | None] | None,
    attempts: Sequence[Attempt],
    queue: Queue | None,
    chain: Chain,
    ended: str | None,
) -> Iterator[Unit]:
    is_train = key.split == "train"
    plan = ensure_plan(run, key.iteration) if is_train else ensure_eval_plan(run, key.iteration, key.split)
    config = read_config(run, plan.config_revision)
    if shards is None:
        shards = range(plan.shard_count) if key.stage in ("rollout", "reward") else (None,)
    for shard in shards:
        call = StageCall(stage=key.stage, run=run.root, iteration=key.iteration, shard=shard, split=key.split)
        history, live = [], []
        for attempt in attempts:
            if shard not in attempt.shards:
                continue
            id_ = attempt.task_id(shard)
            info = queue.get(id_) if queue is not None and id_ is not None else None
            end = read_end(attempt, shard)
            if is_live(attempt, shard, info, end) and (id_ is None or id_ != ended):
                live.append((attempt, info))
            elif (attempt.submitted or attempt.claimed) >= chain.begun:
                task = TaskRun(attempt=attempt, info=info, end=end, shard=shard)
                history.append(with_evidence(task, run, plan, chain))
        state = _seen_state(run, plan, config, call, history)
        yield Unit(job=key, shard=shard, state=state, history=_since_made(history, state), live=tuple(live))


def _seen_state(run: RunDir, plan: Plan, config: Config, call: StageCall, history: Sequence[TaskRun]) -> State:
    """The state of an output; one that a task has just committed may be seen late from another node."""
    state = state_of(run, plan, config, call)
    end = history[-1].end if history else None
    if state.kind != "missing" or end is None or end.exit_code or time.time() - end.finished > VISIBLE_SECONDS:
        return state
    path = shard_manifest_path(run, plan, call.stage, call.shard)
    with suppress(MissingInputError):
        wait_for_file(path, timeout_seconds=VISIBLE_SECONDS, what=call.title, hint="")
    return state_of(run, plan, config, call)


def _since_made(history: Sequence[TaskRun], state: State) -> tuple[TaskRun, ...]:
    """Without the tasks up to the one that made what is now stale or corrupt: they did not fail."""
    if state.kind == "missing":
        return tuple(history)
    made = [number for number, task in enumerate(history) if task.end is not None and task.end.exit_code == 0]
    return tuple(history[made[-1] + 1 :] if made else history)
