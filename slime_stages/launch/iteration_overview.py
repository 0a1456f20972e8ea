"""An iteration's overview, read from plans and manifests alone: quick however large the shards are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.launch.overview import IterationOverview, OpenOutput, Problem, StageOverview
from slime_stages.launch.states import CallState, iteration_states
from slime_stages.launch.waits import longest_waits, run_times
from slime_stages.lineage import command
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_run_plan

STATES = ("corrupt", "stale", "missing", "committed")
"""The worst first: a stage is as its worst shard."""
HAS_REWARD = ("scored", "given")


def iteration_overview(run: RunDir, iteration: int, split: str = "train") -> IterationOverview:
    """One iteration, or one evaluation; also where its plan is lost or broken, which is then its problem."""
    try:
        plan = read_run_plan(run, iteration, split)
    except SlimeStagesError as error:
        return _without_plan(run, iteration, split, error)
    states = iteration_states(run, plan)
    manifests: dict[str, list[Manifest]] = {item.call.stage: [] for item in states}
    for item in states:
        if (manifest := manifest_of(run, item, plan.shard_count)) is not None:
            manifests[item.call.stage].append(manifest)
    rollouts, trained = manifests["rollout"], manifests.get("train", [])
    waits = longest_waits(run, plan, manifests)
    stages = {stage: stage_overview(stage, states, found, waits.get(stage)) for stage, found in manifests.items()}
    samples = sum(manifest.rows for manifest in rollouts)
    return IterationOverview(
        iteration=iteration,
        split=split,
        stages=stages,
        samples=samples,
        tokens=sum(manifest.tokens for manifest in rollouts),
        reward=mean_reward(manifests["reward"]),
        truncated=sum(m.counts.get("truncated", 0) for m in rollouts) / samples if samples else None,
        probs_diff=probs_diff(trained[0]) if trained else None,
        problems=tuple(
            Problem(title=item.call.title, state=item.state.kind, reason=item.state.reason.partition(": ")[2])
            for item in states
            if item.state.kind in ("stale", "corrupt")
        ),
        next_command=command_for(run, states),
        run_seconds=added([stage.run_seconds for stage in stages.values()]),
        queue_seconds=added([stage.queue_seconds for stage in stages.values()]),
    )


def manifest_of(run: RunDir, item: CallState, shard_count: int) -> Manifest | None:
    """The manifest of one output, if there is one that can be read."""
    if item.state.manifest is not None or item.state.kind == "missing":
        return item.state.manifest
    call = item.call
    try:
        return read_manifest(run.manifest_path(call.stage, call.iteration, call.shard, shard_count, call.split))
    except SlimeStagesError:
        return None  # its state says so


def stage_overview(
    stage: str, states: Sequence[CallState], manifests: Sequence[Manifest], wait: float | None
) -> StageOverview:
    items = [item for item in states if item.call.stage == stage]
    words = [state_word(item) for item in items]
    counts, times = Counter(words), run_times(manifests)
    return StageOverview(
        state=min(words, key=STATES.index),
        shards=len(words),
        counts={state: counts[state] for state in STATES},
        seconds=round(sum(times), 3) if times else None,
        run_seconds=round(max(times), 3) if times else None,
        queue_seconds=wait,
        open_outputs=tuple(
            OpenOutput(shard=item.call.shard, state=word)
            for item, word in zip(items, words, strict=True)
            if word != "committed"
        ),
        activity={state: counts[state] for state in STATES if counts[state]},
    )


def state_word(item: CallState) -> str:
    """The word people see: what is fresh is `committed`."""
    return "committed" if item.state.is_fresh else item.state.kind


def mean_reward(manifests: Sequence[Manifest]) -> float | None:
    """Mean over all samples with a reward; shards weigh by how many they have."""
    pairs = [
        (mean, sum(manifest.counts.get(status, 0) for status in HAS_REWARD))
        for manifest in manifests
        if (mean := manifest.metrics.get("rollout/raw_reward")) is not None
    ]
    count = sum(weight for _, weight in pairs)
    return sum(mean * weight for mean, weight in pairs) / count if count else None


def probs_diff(trained: Manifest) -> float | None:
    """Without what was trained since the samples were generated, where that was told apart."""
    name = "train/sampler_probs_diff"
    return trained.metrics.get(name if name in trained.metrics else "train/probs_diff")


def added(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return round(sum(known), 3) if known else None


def command_for(run: RunDir, states: Sequence[CallState]) -> str | None:
    """What makes the first output that is not fresh, and its stage's other ones with it; None if all are."""
    wanted = [item.call for item in states if not item.state.is_fresh]
    if not wanted:
        return None
    first = wanted[0]
    if first.split != "train":
        return eval_command(run, first.iteration)
    alone = sum(call.stage == first.stage for call in wanted) == 1
    return command(run, first.stage, first.iteration, first.shard if alone else None)


def _without_plan(run: RunDir, iteration: int, split: str, error: SlimeStagesError) -> IterationOverview:
    broken = isinstance(error, DataError)
    remake = command(run, "rollout", iteration, None) if split == "train" else eval_command(run, iteration)
    title = f"plan {iteration}" + ("" if split == "train" else f" {split}")
    return IterationOverview(
        iteration=iteration,
        split=split,
        stages={},
        samples=0,
        tokens=0,
        reward=None,
        truncated=None,
        probs_diff=None,
        problems=(Problem(title=title, state="corrupt" if broken else "missing", reason=error.message),),
        next_command=f"rm {run.plan_path(iteration, split)}" if broken else remake,
    )


def eval_command(run: RunDir, version: int) -> str:
    return f"slime-stages eval --run {run.root} --iter {version}"
