"""One iteration, or one evaluation, shard by shard: samples by status, and what became of every prompt and sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slime_stages.errors import MissingInputError, SlimeStagesError
from slime_stages.launch.iteration_overview import manifest_of, mean_reward, state_word
from slime_stages.launch.overview import IterationOverview, TaskFact
from slime_stages.launch.run_overview import RunOverview
from slime_stages.launch.states import CallState, iteration_states
from slime_stages.launch.waits import wall_seconds
from slime_stages.lineage import command
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_run_plan

ACCOUNT = ("issued", "taken", "kept", "dropped", "carried")
"""Counts of prompts; the other counts of a rollout manifest are samples by status, and dropped prompts by reason."""
DROPPED = "dropped/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDetail:
    """One shard: its samples, and their rewards."""

    shard: int
    prompts: int
    """As planned."""
    rollout: str
    """State of the rollout."""
    samples: int
    tokens: int
    statuses: dict[str, int]
    """Samples by status."""
    rollout_seconds: float | None
    reward: str
    """State of the reward."""
    reward_statuses: dict[str, int]
    mean_reward: float | None
    reward_seconds: float | None
    rollout_task: TaskFact | None = None
    """What its job does, or why it failed, where it is not there."""
    reward_task: TaskFact | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationDetail:
    """Everything about one iteration, or one evaluation, that its manifests and `train/samples.parquet` tell."""

    overview: IterationOverview
    policy_version: int
    """Weights that generate."""
    start_version: int
    """Policy that training starts from."""
    config_revision: int
    shards: tuple[ShardDetail, ...]
    prompts: dict[str, int]
    """issued + taken = kept + dropped + carried, over the shards whose rollout is there."""
    drop_reasons: dict[str, int]
    """Dropped prompts by reason."""
    trained: dict[str, int] | None
    """Samples that were `used`, and others by drop reason; None before training."""
    train_metrics: dict[str, float | None]
    evaluations: tuple[IterationOverview, ...]

    @property
    def adds_up(self) -> bool:
        begun, ended = ACCOUNT[:2], ACCOUNT[2:]
        return sum(self.prompts[name] for name in begun) == sum(self.prompts[name] for name in ended)


def iteration_detail(run: RunDir, iteration: int, known: RunOverview) -> IterationDetail:
    """MissingInputError if the iteration is not planned."""
    if not run.plan_path(iteration).exists():
        planned = [number for number in run.iterations() if run.plan_path(number).exists()]
        has = f"has iterations {planned[0]} to {planned[-1]}" if planned else "has none yet"
        raise MissingInputError(
            f"there is no plan for iteration {iteration}; {run.root} {has}",
            hint=f"slime-stages status --run {run.root}",
        )
    plan = read_run_plan(run, iteration)
    states = iteration_states(run, plan)
    by_stage = {stage: [item for item in states if item.call.stage == stage] for stage in ("rollout", "reward")}
    rollouts = [manifest_of(run, item, plan.shard_count) for item in by_stage["rollout"]]
    counts = Counter[str]()
    for manifest in rollouts:
        counts.update(manifest.counts if manifest else {})
    train = manifest_of(run, states[-2], plan.shard_count)
    overview = next(part for part in known.iterations if part.iteration == iteration)
    tasks = {(task.stage, task.shard): task for task in overview.tasks}
    return IterationDetail(
        overview=overview,
        policy_version=plan.policy_version,
        start_version=plan.start_version,
        config_revision=plan.config_revision,
        shards=tuple(
            shard_detail(run, plan, rollout, reward, tasks) for rollout, reward in zip(*by_stage.values(), strict=True)
        ),
        prompts={name: counts[name] for name in ACCOUNT},
        drop_reasons={name.removeprefix(DROPPED): n for name, n in counts.items() if name.startswith(DROPPED)},
        trained=trained_samples(run, iteration) if train and states[-2].state.kind != "corrupt" else None,
        train_metrics=dict(train.metrics) if train else {},
        evaluations=tuple(part for part in known.evaluations if part.iteration == iteration),
    )


def shard_detail(
    run: RunDir,
    plan: Plan,
    rollout: CallState,
    reward: CallState,
    tasks: Mapping[tuple[str, int | None], TaskFact],
) -> ShardDetail:
    made = manifest_of(run, rollout, plan.shard_count)
    scored = manifest_of(run, reward, plan.shard_count)
    shard = plan.shards[rollout.call.shard or 0]
    return ShardDetail(
        shard=shard.shard,
        prompts=shard.stop - shard.start,
        rollout=state_word(rollout),
        samples=made.rows if made else 0,
        tokens=made.tokens if made else 0,
        statuses=without_account(made.counts) if made else {},
        rollout_seconds=wall_seconds([made] if made else []),
        reward=state_word(reward),
        reward_statuses=dict(scored.counts) if scored else {},
        mean_reward=mean_reward([scored] if scored else []),
        reward_seconds=wall_seconds([scored] if scored else []),
        rollout_task=tasks.get(("rollout", shard.shard)),
        reward_task=tasks.get(("reward", shard.shard)),
    )


def without_account(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if name not in ACCOUNT and not name.startswith(DROPPED)}


def trained_samples(run: RunDir, iteration: int) -> dict[str, int]:
    """Samples of `train/samples.parquet` that were used, and the others by why not."""
    from slime_stages.data.schema import TRAIN
    from slime_stages.data.shards import read_shard

    try:
        table = read_shard(run.train_samples_path(iteration), TRAIN, ["used", "drop_reason"])
    except SlimeStagesError as error:
        error.hint = command(run, "train", iteration, None, force=True)
        raise
    pairs = zip(table["used"].to_pylist(), table["drop_reason"].to_pylist(), strict=True)
    fates = Counter("used" if used else reason or "no reason given" for used, reason in pairs)
    return {"used": fates.pop("used", 0), **dict(sorted(fates.items()))}
