"""What the scored samples of an iteration, or of an evaluation, come to, under slime's metric keys.

They are known once the last reward shard is committed; whoever commits it adds the line to RUN/metrics, once. Nothing
depends on these lines: all of it can be computed again from the shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.config.eval_dataset import resolved_dataset
from slime_stages.config.hooks import BY_SETTING, load_hook
from slime_stages.data.sample_table import read_samples
from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import flat_lists, read_batches, read_shard
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import shard_manifest_path
from slime_stages.passrate import pass_rates
from slime_stages.run.commit import create_file
from slime_stages.run.digest import digest_json
from slime_stages.run.manifest import Manifest, data_path, now, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import Stage, say
from slime_stages.tracking import track

Metrics = dict[str, float | None]
ROLLOUT_COLUMNS = ("group_index", "rollout_id", "response_length", "loss_mask", "status")
ENGINE_METRICS = (
    "prefix_cache_hit_rate",
    "avg_cached_tokens_per_sample",
    "spec_accept_rate",
    "spec_accept_length",
)
"""Of the engine's counters, as a rollout shard tells them behind `rollout/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """All samples of an iteration or of an evaluation.

    Shapes: S samples.
    """

    rewards: NDArray[np.float64]
    """[S] NaN where there is none."""
    truncated: NDArray[np.bool_]
    """[S]"""
    lengths: NDArray[np.int64]
    """[S] response tokens that the model wrote."""
    groups: NDArray[np.int64]
    """[S] `group_index`."""
    attempts: NDArray[np.int64]
    """[S] equal for samples of one execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    rollout: Manifest
    reward: Manifest
    rollout_path: Path
    reward_path: Path


def read_scored(run: RunDir, plan: Plan) -> Scored | None:
    """None while the rewards of a shard are missing, or are those of an earlier rollout."""
    shards = _shards(run, plan)
    return None if shards is None else _scored(shards)


def evaluation_metrics(scored: Scored, config: Config, name: str) -> Metrics:
    """`eval/NAME`, its truncated ratio, response lengths, and pass@k if asked for."""
    has_reward = ~np.isnan(scored.rewards)
    fewest = resolved_dataset(config, name).min_eval_samples or 1
    enough = int(has_reward.sum()) >= fewest
    metrics: Metrics = {
        f"eval/{name}": float(scored.rewards[has_reward].mean()) if enough else None,
        f"eval/{name}-truncated_ratio": _mean(scored.truncated),
        f"eval/{name}-null_ratio": _mean(~has_reward),
    }
    if config.eval.log_passrate and enough:
        rates = pass_rates(scored.rewards, scored.groups, scored.attempts)
        metrics |= {f"eval/{name}-{key}": value for key, value in rates.items()}
    return metrics | _lengths(scored, f"eval/{name}")


def iteration_metrics(scored: Scored, config: Config, rollouts: Sequence[Manifest]) -> Metrics:
    """The same of training samples, with what the rollout shards say of themselves: counts add up, rates are means."""
    has_reward = ~np.isnan(scored.rewards)
    metrics: Metrics = _merged(rollouts)
    metrics["rollout/raw_reward"] = float(scored.rewards[has_reward].mean()) if has_reward.any() else None
    metrics["rollout/truncated_ratio"] = _mean(scored.truncated)
    if config.eval.log_passrate:
        rates = pass_rates(scored.rewards, scored.groups, scored.attempts)
        metrics |= {f"passrate/{key}": value for key, value in rates.items()}
    return metrics | _lengths(scored, "rollout")


def report_scored(stage: Stage) -> None:
    """To be called when a reward shard is committed: adds a line to RUN/metrics if it was the last one."""
    shards = _shards(stage.run, stage.plan)
    if shards is None:
        return
    name = stage.plan.split
    scored, rollouts = _scored(shards), [shard.rollout for shard in shards]
    if name == "train":
        metrics = iteration_metrics(scored, stage.config, rollouts)
    else:
        metrics = evaluation_metrics(scored, stage.config, name) | _engine_metrics(rollouts, f"eval/{name}")
        metrics |= _own_metrics(rollouts)
    contents = digest_json([shard.reward.content for shard in shards])
    record = stage.run.scored_path(stage.plan.iteration, name, contents)
    if not create_file(record, orjson.dumps(metrics, option=orjson.OPT_INDENT_2)):
        return  # another attempt at the last shard has told of it
    if metrics.get(f"eval/{name}", 0.0) is None:
        say(f"warning: the evaluation {name} of weights {stage.plan.iteration} has too few samples with a reward")
    if not _own_log(stage, shards, scored, metrics):
        _append(stage, metrics)


def _append(stage: Stage, metrics: Metrics) -> None:
    path = stage.run.metrics_path("rollout" if stage.plan.split == "train" else "eval")
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"iteration": stage.plan.iteration, "time": now(), **metrics}
    with path.open("ab") as file:
        file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    track(stage.run, stage.plan, stage.config, metrics)


def _own_log(stage: Stage, shards: Sequence[_Shard], scored: Scored, metrics: Metrics) -> bool:
    """Whether the user's function has taken care of it. Its failure costs nothing but its own log."""
    plugins, plan = stage.config.plugins, stage.plan
    training = plan.split == "train"
    setting = "custom_rollout_log_function_path" if training else "custom_eval_rollout_log_function_path"
    if not (path := getattr(plugins, setting)):
        return False
    log: Any = load_hook(BY_SETTING[setting], path)
    samples = [sample for shard in shards for sample in _samples(shard)]
    args, extra = stage.config.as_args(), _own_metrics([shard.rollout for shard in shards])
    args.log_metrics = partial(_append, stage)
    try:
        if training:
            return bool(log(plan.iteration, args, samples, extra, metrics.get("perf/rollout_time")))
        rewards = [None if np.isnan(reward) else float(reward) for reward in scored.rewards]
        data = {plan.split: {"rewards": rewards, "truncated": scored.truncated.tolist(), "samples": samples}}
        return bool(log(plan.iteration, args, data, extra))
    except Exception as error:  # a plug-in may raise anything
        say(f"warning: {setting} `{path}` failed: {type(error).__name__}: {error}")
        return False


def _shards(run: RunDir, plan: Plan) -> list[_Shard] | None:
    found = []
    for number in range(plan.shard_count):
        paths = [shard_manifest_path(run, plan, stage, number) for stage in ("rollout", "reward")]
        try:
            rollout, reward = (read_manifest(path) for path in paths)
        except SlimeStagesError:
            return None
        if reward.inputs.get("rollout") != rollout.content:
            return None
        places = [data_path(path, manifest) for path, manifest in zip(paths, (rollout, reward), strict=True)]
        found.append(_Shard(rollout=rollout, reward=reward, rollout_path=places[0], reward_path=places[1]))
    return found


def _scored(shards: Sequence[_Shard]) -> Scored:
    rollouts, lengths = [], [np.zeros(0, np.int64)]
    for shard in shards:
        for table in read_batches(shard.rollout_path, ROLLOUT, ROLLOUT_COLUMNS):  # a mask is as long as its response
            lengths.append(_written_tokens(table))
            rollouts.append(table.drop_columns("loss_mask"))
    rewards = [read_shard(shard.reward_path, REWARD, ("reward",)) for shard in shards]
    values = [value for table in rewards for value in table["reward"].to_pylist()]
    groups = [value for table in rollouts for value in table["group_index"].to_pylist()]
    executions = [value for table in rollouts for value in table["rollout_id"].to_pylist()]
    first_free = max((value for value in executions if value is not None), default=-1) + 1
    return Scored(
        rewards=np.array([np.nan if value is None else value for value in values], np.float64),
        truncated=np.array([s == "truncated" for table in rollouts for s in table["status"].to_pylist()], np.bool_),
        lengths=np.concatenate(lengths),
        groups=np.array([-1 if value is None else value for value in groups], np.int64),
        attempts=np.array(
            [first_free + row if value is None else value for row, value in enumerate(executions)], np.int64
        ),
    )


def _written_tokens(table: Any) -> NDArray[np.int64]:
    """Response tokens with mask 1; all of them where there is no mask."""
    flat, offsets = flat_lists(table["loss_mask"])
    sums = np.diff(np.concatenate([[0], np.cumsum(flat, dtype=np.int64)])[offsets])
    has_mask = table["loss_mask"].is_valid().to_numpy()
    return np.where(has_mask, sums, np.asarray(table["response_length"], np.int64))


def _samples(shard: _Shard) -> Iterator[Sample]:
    """With the reward as it was scored."""
    rewards = read_shard(shard.reward_path, REWARD, ("reward", "reward_parts"))
    columns = (rewards["reward"].to_pylist(), rewards["reward_parts"].to_pylist())
    for sample, number, part in zip(read_samples(shard.rollout_path), *columns, strict=True):
        sample.reward = number if part is None else orjson.loads(part)
        yield sample


def _merged(rollouts: Sequence[Manifest]) -> Metrics:
    """Means weigh by the samples of each shard; counts are added; shards generate beside one another."""
    merged: Metrics = {}
    for key in dict.fromkeys(key for manifest in rollouts for key in manifest.metrics):
        pairs = [(value, m.rows) for m in rollouts if (value := m.metrics.get(key)) is not None]
        values = [value for value, _ in pairs]
        if not pairs:
            merged[key] = None
        elif key.startswith("rollout/dynamic_filter/"):
            merged[key] = sum(values)
        elif key == "perf/rollout_time":
            merged[key] = max(values)
        else:
            weights = [max(rows, 1) for _, rows in pairs]
            merged[key] = float(np.average(values, weights=weights))
    return merged


def _own_metrics(rollouts: Sequence[Manifest]) -> Metrics:
    """What a dynamic filter or a rollout function has counted, without what we say of every shard."""
    told = tuple(f"rollout/{name}" for name in ENGINE_METRICS)
    ours = ("rollout/response_len/", "rollout/truncated_ratio", "perf/", *told)
    return {key: value for key, value in _merged(rollouts).items() if not key.startswith(ours)}


def _engine_metrics(rollouts: Sequence[Manifest], prefix: str) -> Metrics:
    merged = _merged(rollouts)
    return {f"{prefix}/{name}": merged[key] for name in ENGINE_METRICS if (key := f"rollout/{name}") in merged}


def _lengths(scored: Scored, prefix: str) -> Metrics:
    if not len(scored.lengths):
        return {}
    return {
        f"{prefix}/response_len/mean": float(scored.lengths.mean()),
        f"{prefix}/response_len/median": float(np.median(scored.lengths)),
        f"{prefix}/response_len/max": float(scored.lengths.max()),
        f"{prefix}/response_len/min": float(scored.lengths.min()),
    }


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
