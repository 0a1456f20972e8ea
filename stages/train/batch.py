"""The samples of an iteration with their rewards, in batch order, and which of them cannot be trained on, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.data.sample_table import samples_of
from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import list_rows, read_shard
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.lineage import command, committed, shard_manifest_path
from slime_stages.named_rewards import chosen_stage
from slime_stages.run.manifest import check_data
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from stages.train.algorithm.conversion import SampleColumns, TrainBatch, convert_samples
from stages.train.algorithm.rewards import post_process_rewards
from stages.train.custom_data import converted, custom_rewards, own_columns
from stages.train.hooks import Hooks
from stages.train.replay import engine_experts, nuclei_of, replay_columns

ROLLOUT_COLUMNS = (
    "shard",
    "row",
    "index",
    "group_index",
    "rollout_id",
    "tokens",
    "total_length",
    "response_length",
    "loss_mask",
    "rollout_log_probs",
    "status",
    "remove_sample",
    "weight_versions",
    "metadata",
)
REWARDS = ("shard", "row", "reward", "reward_parts")
FOR_TEACHING = "teacher_log_probs"
NO_REWARD, NO_TOKENS = "no_reward", "no_tokens"
UNFINISHED = ("aborted", "failed")
"""Statuses of samples whose generation did not end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBatch:
    """Everything the trainer needs of an iteration. S samples, in the order of `index`."""

    table: pa.Table
    """[S] rows of the rollout shards, the columns that training reads."""
    raw_rewards: NDArray[np.float64]
    """[S] NaN where there is none, even if it is trained on as `null_reward`."""
    drop_reasons: list[str | None]
    """[S] why a sample is not trained on; it keeps its place in its step, with mask 0."""
    batch: TrainBatch

    @property
    def sample_count(self) -> int:
        return len(self.drop_reasons)


def read_iteration(run: RunDir, plan: Plan, config: Config) -> IterationBatch:
    """Read all shards of the iteration. DataError, with the command that mends it, for one that is not as committed."""
    algorithm = config.algorithm
    wanted = (*ROLLOUT_COLUMNS, *((FOR_TEACHING,) if algorithm.use_opd else ()), *replay_columns(config))
    columns, rewards = (None, REWARDS) if algorithm.shows_samples else (wanted, REWARDS[:3])
    rollout = pa.concat_tables([_read(run, plan, "rollout", shard, columns) for shard in range(plan.shard_count)])
    scored = chosen_stage(run, plan.iteration)
    reward = pa.concat_tables([_read(run, plan, scored, shard, rewards) for shard in range(plan.shard_count)])
    if not rollout.select(["shard", "row"]).equals(reward.select(["shard", "row"])):
        raise DataError(
            f"iteration {plan.iteration} has {len(rollout)} samples and {len(reward)} rewards, not one for each",
            hint=command(run, scored, plan.iteration, 0, force=True),
        )
    for name in rewards[2:]:
        rollout = rollout.drop_columns(name) if name in rollout.column_names else rollout
        rollout = rollout.append_column(name, reward[name])
    order = pc.sort_indices(rollout, sort_keys=[("index", "ascending"), ("shard", "ascending"), ("row", "ascending")])
    return batch_of(rollout.take(order), config)


def batch_of(table: pa.Table, config: Config) -> IterationBatch:
    """The batch of samples that stand in batch order, with their rewards as a column."""
    hooks, shown = Hooks(config), _shown_samples(table) if config.algorithm.shows_samples else []
    raw, filled = _rewards(table, shown, config)
    reasons = _drop_reasons(table, filled)
    kept = np.array([reason is None for reason in reasons], bool)
    rewards, told = np.zeros(len(table), np.float32), np.nan_to_num(filled)
    given = custom_rewards(hooks, [sample for sample, is_kept in zip(shown, kept, strict=False) if is_kept])
    if given is not None:
        told[kept], rewards[kept] = given
        raw = np.where(kept, told, raw)
    else:
        rewards[kept] = _normalized(table, filled, kept, config)
    removed = table["remove_sample"].to_numpy(zero_copy_only=False) | ~kept
    samples = SampleColumns(
        index=table["index"].to_numpy(),
        group_index=table["group_index"].to_numpy(),
        rollout_id=table["rollout_id"].to_pylist(),
        tokens=[np.zeros(0, np.int32) if row is None else row for row in list_rows(table["tokens"])],
        response_length=table["response_length"].to_numpy(),
        loss_mask=list_rows(table["loss_mask"]),
        status=table["status"].to_pylist(),
        reward=told,
        remove_sample=removed.tolist(),
        rollout_log_probs=list_rows(table["rollout_log_probs"]),
        teacher_log_probs=[s.teacher_log_probs for s in shown] if shown else _optional_rows(table, FOR_TEACHING),
        raw_reward_override=_raw_rewards(table["metadata"]),
    )
    batch = convert_samples(samples, rewards)
    batch = replace(batch, nuclei=nuclei_of(table, config), routed_experts=engine_experts(table, config))
    if shown:
        for sample, is_removed in zip(shown, removed.tolist(), strict=True):
            sample.remove_sample = is_removed
        batch = converted(hooks, shown, replace(batch, columns=own_columns(shown)))
    return IterationBatch(table=table, raw_rewards=raw, drop_reasons=reasons, batch=batch)


def _rewards(
    table: pa.Table, shown: Sequence[Sample], config: Config
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(as scored, as trained on): the second has `null_reward` where scoring failed, and so have the samples shown.

    What was never finished was not scored either, and stays without.
    """
    raw = table["reward"].to_numpy().astype(np.float64)
    if config.algorithm.custom_reward_post_process_path is not None:  # it may make a number of whatever there is
        raw = np.where(np.isnan(raw) & [sample.reward is not None for sample in shown], 0.0, raw)
    if config.algorithm.null_reward == "drop":
        return raw, raw
    value = float(config.algorithm.null_reward)
    has_failed = np.isnan(raw) & ~np.isin(np.array(table["status"].to_pylist()), UNFINISHED)
    for sample, is_without in zip(shown, has_failed.tolist(), strict=False):
        sample.reward = value if is_without else sample.reward
    return raw, np.where(has_failed, value, raw)


def _shown_samples(table: pa.Table) -> list[Sample]:
    """The rows as samples, with the reward that the reward function returned."""
    samples = samples_of(table)
    for sample, parts in zip(samples, table["reward_parts"].to_pylist(), strict=True):
        if parts is not None:
            sample.reward = orjson.loads(parts)
    return samples


def _normalized(
    table: pa.Table, raw: NDArray[np.float64], kept: NDArray[np.bool_], config: Config
) -> NDArray[np.float32]:
    algorithm = config.algorithm
    return post_process_rewards(
        raw[kept],
        table["group_index"].to_numpy()[kept],
        advantage_estimator=algorithm.advantage_estimator,
        rewards_normalization=algorithm.rewards_normalization,
        grpo_std_normalization=algorithm.grpo_std_normalization and config.rollout.n_samples_per_prompt > 1,
    )


def _optional_rows(table: pa.Table, name: str) -> list[NDArray[Any] | None] | None:
    return list_rows(table[name]) if name in table.column_names else None


def _read(run: RunDir, plan: Plan, stage: str, shard: int, columns: Sequence[str] | None) -> pa.Table:
    schema = ROLLOUT if stage == "rollout" else REWARD
    path = shard_manifest_path(run, plan, stage, shard)
    try:
        return read_shard(check_data(path, committed(run, plan, stage, shard)), schema, columns)
    except SlimeStagesError as error:
        error.hint = command(run, stage, plan.iteration, shard)
        raise


def _drop_reasons(table: pa.Table, raw_rewards: NDArray[np.float64]) -> list[str | None]:
    reasons: list[str | None] = []
    lengths, statuses = table["response_length"].to_pylist(), table["status"].to_pylist()
    for length, status, reward in zip(lengths, statuses, raw_rewards.tolist(), strict=True):
        if length == 0:
            reasons.append(status if status in UNFINISHED else NO_TOKENS)
        elif np.isnan(reward):
            reasons.append(status if status in UNFINISHED else NO_REWARD)
        else:
            reasons.append(None)
    return reasons


def _raw_rewards(metadata: pa.ChunkedArray) -> Sequence[float | None] | None:
    texts = metadata.to_pylist()
    if not any('"raw_reward"' in text for text in texts):
        return None
    return [orjson.loads(text).get("raw_reward") for text in texts]
