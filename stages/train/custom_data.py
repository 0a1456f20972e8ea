"""Rewards and training data made by the user's functions, from samples as slime hands them over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime_stages.errors import DataError
from slime_stages.sample import Sample
from stages.train.algorithm.conversion import (
    LOG_PROBS,
    TrainBatch,
    check_rollouts_stay_in_group,
    expand_loss_masks,
    fill_log_probs,
    fill_rollout_ids,
    sum_by_rollout,
)
from stages.train.hooks import Hooks

REQUIRED = ("tokens", "response_lengths", "rewards")
KNOWN = {
    *REQUIRED,
    "loss_masks",
    "raw_reward",
    "truncated",
    "sample_indices",
    "rollout_ids",
    "rollout_mask_sums",
    *LOG_PROBS,
    "source_names",
}


def custom_rewards(hooks: Hooks, samples: Sequence[Sample]) -> tuple[NDArray[np.float64], NDArray[np.float32]] | None:
    """Raw rewards and those to train on, from custom_reward_post_process_path; None without."""
    function = hooks.find("custom_reward_post_process_path")
    if function is None:
        return None
    raw, rewards = (np.asarray(each, np.float64) for each in function(hooks.args, list(samples)))
    if raw.shape != (len(samples),) or rewards.shape != raw.shape or not np.isfinite(rewards).all():
        raise DataError(
            f"custom_reward_post_process_path gave {raw.shape} raw and {rewards.shape} other rewards for "
            f"{len(samples)} samples, or some that are no numbers",
            hint="it returns (raw_rewards, rewards), a number for each sample in either",
        )
    return raw, rewards.astype(np.float32)


def converted(hooks: Hooks, samples: Sequence[Sample], batch: TrainBatch) -> TrainBatch:
    """The batch as custom_convert_samples_to_train_data_path makes it; what it leaves out stays as in `batch`."""
    function = hooks.find("custom_convert_samples_to_train_data_path")
    if function is None:
        return batch
    data = dict(function(hooks.args, list(samples)))
    _check(data, len(samples))
    tokens = {position: np.asarray(row) for position, row in enumerate(data["tokens"])}
    lengths = np.asarray(data["response_lengths"], np.int64)
    given = _by_position(data.get("loss_masks", [None] * len(tokens)))
    masks = expand_loss_masks(given, lengths, np.zeros(len(tokens), bool))
    sums = np.array([mask.sum(dtype=np.int64) for mask in masks.values()], np.int64)
    ids = fill_rollout_ids(data["rollout_ids"]) if "rollout_ids" in data else batch.rollout_ids
    check_rollouts_stay_in_group(ids, batch.group_indices)
    totals = data.get("rollout_mask_sums")
    return replace(
        batch,
        tokens=tokens,
        total_lengths=np.array([len(row) for row in tokens.values()], np.int64),
        response_lengths=lengths,
        rewards=np.asarray(data["rewards"], np.float32),
        raw_reward=np.asarray(data.get("raw_reward", batch.raw_reward), np.float64),
        truncated=np.asarray(data.get("truncated", batch.truncated), np.uint8),
        sample_indices=np.asarray(data.get("sample_indices", batch.sample_indices), np.int64),
        rollout_ids=ids,
        loss_masks=masks,
        loss_mask_sums=sums,
        rollout_mask_sums=sum_by_rollout(sums, ids) if totals is None else np.asarray(totals, np.int64),
        rollout_log_probs=fill_log_probs("rollout_log_probs", _by_position(data.get("rollout_log_probs")), masks),
        teacher_log_probs=fill_log_probs("teacher_log_probs", _by_position(data.get("teacher_log_probs")), masks),
        source_names=list(data.get("source_names", batch.source_names)),
        columns={**batch.columns, **{name: list(data[name]) for name in data.keys() - KNOWN}},
    )


def own_columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """What the loss may read beside slime's columns: `metadata`, the train_metadata, and attributes of the user's."""
    found: dict[str, list[Any]] = {}
    if any(sample.train_metadata is not None for sample in samples):
        found["metadata"] = [sample.train_metadata for sample in samples]
    names = {name for sample in samples for name in vars(sample).keys() - set(Sample.__dataclass_fields__)}
    return found | {name: [getattr(sample, name, None) for sample in samples] for name in sorted(names)}


def _by_position(rows: Sequence[Any] | None) -> dict[int, Any]:
    return dict(enumerate(rows or ()))


def _check(data: dict[str, Any], count: int) -> None:
    missing = [name for name in REQUIRED if name not in data]
    wrong = [name for name, rows in data.items() if len(rows) != count]
    if missing or wrong:
        says = f"no {', '.join(missing)}" if missing else f"{len(data[wrong[0]])} {wrong[0]} for {count} samples"
        raise DataError(
            f"custom_convert_samples_to_train_data_path gave {says}",
            hint=f"it returns a dict of lists, one entry for each sample: {', '.join(REQUIRED)} and what else there is",
        )
