"""The samples of an iteration with their rewards, in batch order, and which of them cannot be trained on, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import torch.distributed as distributed
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.data.sample_table import samples_of
from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import read_batches
from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.lineage import command, committed, shard_manifest_path
from slime_stages.named_rewards import chosen_stage
from slime_stages.run.manifest import check_data, check_size, data_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from stages.train.algorithm.conversion import SampleColumns, TrainBatch, convert_samples, fill_log_probs
from stages.train.algorithm.rewards import post_process_rewards
from stages.train.custom_data import converted, custom_rewards, own_columns
from stages.train.hooks import Hooks
from stages.train.rows import RowSource, ShardRows, TableRows, read_rows_of, row_columns, trained_tokens

ROLLOUT_COLUMNS = (
    "shard",
    "row",
    "index",
    "group_index",
    "rollout_id",
    "total_length",
    "response_length",
    "loss_mask",
    "status",
    "remove_sample",
    "weight_versions",
)
"""What every rank reads of all samples; of the masks it keeps the counts. `row_columns` are those of its own."""
TRAINED_TOKENS = "trained_tokens"
REWARDS = ("shard", "row", "reward", "reward_parts")
NO_REWARD, NO_TOKENS = "no_reward", "no_tokens"
UNFINISHED = ("aborted", "failed")
"""Statuses of samples whose generation did not end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBatch:
    """Everything the trainer needs of an iteration. S samples, in the order of `index`."""

    table: pa.Table
    """[S] rows of the rollout shards, the columns that every rank reads."""
    raw_rewards: NDArray[np.float64]
    """[S] NaN where there is none, even if it is trained on as `null_reward`."""
    drop_reasons: list[str | None]
    """[S] why a sample is not trained on; it keeps its place in its step, with mask 0."""
    batch: TrainBatch
    """Without rows, unless a function of the user's was shown all of them."""
    config: Config = field(repr=False)
    source: RowSource | None
    """Of the rows that `batch` has not."""

    @property
    def sample_count(self) -> int:
        return len(self.drop_reasons)

    def with_rows(self, positions: Sequence[int]) -> TrainBatch:
        """The batch with the tokens of the samples at these positions, and what is known of each."""
        return self.batch if self.source is None else read_rows_of(self.batch, self.source, positions, self.config)


def read_iteration(run: RunDir, plan: Plan, config: Config) -> IterationBatch:
    """Read all shards of the iteration. DataError, with the command that mends it, for one that is not as committed."""
    if config.algorithm.shows_samples:
        return batch_of(_rewarded(run, plan, None, REWARDS), config)
    table = _rewarded(run, plan, ROLLOUT_COLUMNS, REWARDS[:3])
    shards = range(plan.shard_count)
    source = ShardRows(
        paths={shard: _path_of(run, plan, "rollout", shard) for shard in shards},
        hints={shard: command(run, "rollout", plan.iteration, shard) for shard in shards},
        columns=row_columns(config),
        shard=table["shard"].to_numpy(),
        row=table["row"].to_numpy(),
    )
    return _batch_of(table, source, config)


def _rewarded(run: RunDir, plan: Plan, columns: Sequence[str] | None, rewards: Sequence[str]) -> pa.Table:
    """The rows of all rollout shards in batch order, with those columns of their rewards."""
    scored = chosen_stage(run, plan.iteration)
    rollout, reward = (_read(run, plan, *wanted) for wanted in (("rollout", columns), (scored, rewards)))
    if not rollout.select(["shard", "row"]).equals(reward.select(["shard", "row"])):
        raise DataError(
            f"iteration {plan.iteration} has {len(rollout)} samples and {len(reward)} rewards, not one for each",
            hint=command(run, scored, plan.iteration, 0, force=True),
        )
    for name in rewards[2:]:
        rollout = rollout.drop_columns(name) if name in rollout.column_names else rollout
        rollout = rollout.append_column(name, reward[name])
    order = pc.sort_indices(rollout, sort_keys=[("index", "ascending"), ("shard", "ascending"), ("row", "ascending")])
    return rollout.take(order)


def batch_of(table: pa.Table, config: Config) -> IterationBatch:
    """The batch of samples that are in memory, in batch order, with their rewards as a column."""
    return _batch_of(_counted(table), TableRows(table), config)


def _batch_of(table: pa.Table, source: RowSource, config: Config) -> IterationBatch:
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
    batch = convert_samples(_sample_columns(table, told, removed), rewards)
    data = IterationBatch(table=table, raw_rewards=raw, drop_reasons=reasons, batch=batch, config=config, source=source)
    if not shown:
        return data
    for sample, is_removed in zip(shown, removed.tolist(), strict=True):
        sample.remove_sample = is_removed
    return replace(data, batch=converted(hooks, shown, _whole(data, shown)), source=None)


def _whole(data: IterationBatch, shown: Sequence[Sample]) -> TrainBatch:
    """With all rows, and with what functions of the user's have left on the samples."""
    whole = data.with_rows(range(len(shown)))
    teacher = {position: sample.teacher_log_probs for position, sample in enumerate(shown)}
    return replace(
        whole,
        columns=own_columns(shown),
        teacher_log_probs=fill_log_probs("teacher_log_probs", teacher, whole.loss_masks),
    )


def _sample_columns(table: pa.Table, rewards: NDArray[np.float64], removed: NDArray[np.bool_]) -> SampleColumns:
    return SampleColumns(
        index=table["index"].to_numpy(),
        group_index=table["group_index"].to_numpy(),
        rollout_id=table["rollout_id"].to_pylist(),
        total_length=table["total_length"].to_numpy(),
        response_length=table["response_length"].to_numpy(),
        trained_tokens=table[TRAINED_TOKENS].to_numpy(),
        status=table["status"].to_pylist(),
        reward=rewards,
        remove_sample=removed,
        raw_reward_override=_raw_rewards(table["metadata"]) if "metadata" in table.column_names else None,
    )


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


def _counted(table: pa.Table) -> pa.Table:
    """The rows with the count of the tokens that their masks leave to train on."""
    counts = trained_tokens(table["loss_mask"], table["response_length"].to_numpy())
    return table.append_column(TRAINED_TOKENS, pa.array(counts))


def _read(run: RunDir, plan: Plan, stage: str, columns: Sequence[str] | None) -> pa.Table:
    """All rows of all shards; where only some columns are asked for, with counts in place of masks."""
    schema = ROLLOUT if stage == "rollout" else REWARD
    tables = []
    for shard in range(plan.shard_count):
        try:
            _check_shard(run, plan, stage, shard)
            for table in read_batches(_path_of(run, plan, stage, shard), schema, columns):
                is_light = schema is ROLLOUT and columns is not None
                tables.append(_counted(table).drop_columns("loss_mask") if is_light else table)
        except SlimeStagesError as error:
            error.hint = command(run, stage, plan.iteration, shard)
            raise
    if not tables:
        raise DataError(
            f"no {stage} shard of iteration {plan.iteration} holds a sample",
            hint=command(run, "rollout", plan.iteration, 0, force=True),
        )
    return pa.concat_tables(tables)


def _check_shard(run: RunDir, plan: Plan, stage: str, shard: int) -> None:
    """One of the ranks reads it whole for its digest; what is wrong with it then ends them all."""
    path, manifest = shard_manifest_path(run, plan, stage, shard), committed(run, plan, stage, shard)
    rank, count = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    check = check_data if shard % count == rank else check_size
    check(path, manifest)


def _path_of(run: RunDir, plan: Plan, stage: str, shard: int) -> Path:
    return data_path(shard_manifest_path(run, plan, stage, shard), committed(run, plan, stage, shard))


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
