"""Which jobs make which iterations, and which wait for which. Nothing here knows SLURM, or what is done already.

sync(i-1-staleness) ─► rollout(i) ─► reward(i) ─► train(i) ─► sync(i) ─► …
                                    train(i-1) ─┘            └► evaluation of version i+1, which nothing waits for

Where rollouts stream, rollout(i) also waits for rollout(i-1), whose jobs go on to it themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.plans import eval_shard_count, evaluates
from slime_stages.launch.start_run import current_revision
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config, read_run_plan


class JobKey(NamedTuple):
    """Which job: one stage of an iteration, or of an evaluation of the weights of that version."""

    stage: str
    iteration: int
    split: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job, or a job array, that the chain needs."""

    stage: str
    iteration: int
    """Of an evaluation: the version of the weights."""
    split: str = "train"
    shards: tuple[int | None, ...] = (None,)
    """One task each; None for train and sync, which have no shards."""
    depends_on: tuple[JobKey, ...] = ()
    """Jobs that must have ended before; some may belong to iterations before the first one asked for."""

    @property
    def key(self) -> JobKey:
        return JobKey(self.stage, self.iteration, self.split)


def job_graph(run: RunDir, iterations: range, *, staleness: int | None = None, final: bool = True) -> list[PlannedJob]:
    """The jobs of the iterations, in an order in which they can be submitted; an evaluation comes behind the iteration
    that starts from the same weights. `final`: the chain ends with them, so that its last version is evaluated too."""
    jobs: list[PlannedJob] = []
    config = read_config(run, current_revision(run))
    lag = config.rollout.staleness if staleness is None else staleness
    for iteration in iterations:
        plan = _frozen_plan(run, iteration)
        jobs += iteration_jobs(
            iteration,
            plan.shard_count if plan else config.rollout.rollout_shards,
            policy_version=plan.policy_version if plan else max(0, iteration - lag),
            carry_from=(plan.carry_from or ()) if plan else (),
        )
        jobs += evaluation_jobs(run, iteration) if evaluates(config, iteration) else ()
    evaluates_end = evaluates(config, iterations.stop) or (final and config.eval.eval_interval is not None)
    return [*jobs, *evaluation_jobs(run, iterations.stop)] if iterations and evaluates_end else jobs


def iteration_jobs(
    iteration: int, shards: int, *, policy_version: int, carry_from: Sequence[int] = ()
) -> Iterator[PlannedJob]:
    """Rollout array, reward array, train, sync. Older weights than the newest let generation overlap with training;
    rollouts that are handed over by `carry_from` may be newer than these."""
    generated, scored = JobKey("rollout", iteration), JobKey("reward", iteration)
    trained_before = (JobKey("train", iteration - 1),) if policy_version < iteration else ()
    published = (JobKey("sync", policy_version - 1),) if policy_version else ()
    handed_over = (JobKey("rollout", earlier) for earlier in carry_from if earlier >= policy_version)
    yield PlannedJob(
        stage="rollout",
        iteration=iteration,
        shards=tuple(range(shards)),
        depends_on=(*published, *handed_over),
    )
    yield PlannedJob(stage="reward", iteration=iteration, shards=tuple(range(shards)), depends_on=(generated,))
    yield PlannedJob(stage="train", iteration=iteration, depends_on=(scored, *trained_before))
    yield PlannedJob(stage="sync", iteration=iteration, depends_on=(JobKey("train", iteration),))


def evaluation_jobs(run: RunDir, version: int) -> Iterator[PlannedJob]:
    """Rollout and reward of every evaluation set, with the weights of a version."""
    config = read_config(run, current_revision(run))
    for split, _ in config.eval.datasets:
        plan = _frozen_plan(run, version, split)
        shards = tuple(range(plan.shard_count if plan else eval_shard_count(run, config, split)))
        yield PlannedJob(
            stage="rollout",
            iteration=version,
            split=split,
            shards=shards,
            depends_on=(JobKey("sync", version - 1),) if version else (),
        )
        generated = JobKey("rollout", version, split)
        yield PlannedJob(stage="reward", iteration=version, split=split, shards=shards, depends_on=(generated,))


def _frozen_plan(run: RunDir, iteration: int, split: str = "train") -> Plan | None:
    """None before there is one; and of one that is not whole, which is made again."""
    try:
        return read_run_plan(run, iteration, split)
    except SlimeStagesError:
        return None
