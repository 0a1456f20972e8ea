"""From the samples of an iteration to what the optimiser steps over (spec §A.5, M.1).

Needs of the whole iteration what there is once a sample: rollout ids, mask sums and reward groups reach across shards.
What is as long as a sample is added for some of them. Samples stand in batch order, which is by `index`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slime_stages.errors import DataError

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]
IntegerColumn = Sequence[int] | npt.NDArray[np.integer]
FloatColumn = Sequence[float] | npt.NDArray[np.floating]
BooleanColumn = Sequence[bool] | npt.NDArray[np.bool_]
Rows = Mapping[int, npt.NDArray[Any]]
"""By position of the sample in the batch."""
GivenRows = Mapping[int, npt.ArrayLike | None]
"""Likewise; None or absent where the sample has none."""
LOG_PROBS = ("rollout_log_probs", "teacher_log_probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """What there is once a sample, as it comes from rollout and reward; any sequence of length S will do.

    Shapes: S samples; sample s has L tokens, of which the last R are its response.
    """

    index: IntegerColumn
    """Counter of the sample over the run."""

    group_index: IntegerColumn
    """Counter of the prompt over the run."""

    rollout_id: Sequence[int | None]
    """Execution the sample came from; siblings share it."""

    total_length: IntegerColumn
    """L of each sample."""

    response_length: IntegerColumn
    """R of each sample."""

    trained_tokens: IntegerColumn
    """Response tokens with mask 1; not of those to be removed, see below."""

    status: Sequence[str]
    """`completed`, `truncated`, `aborted` or `failed`."""

    reward: FloatColumn
    """Raw reward; unscored samples do not come this far."""

    remove_sample: BooleanColumn
    """True zeroes the mask; the sample still counts in its group's statistics and in its rollout."""

    raw_reward_override: Sequence[float | None] | None = None
    """`metadata["raw_reward"]`: what to report instead of the reward."""

    source_name: Sequence[str | None] | None = None
    """Data set the prompt came from."""

    def __post_init__(self) -> None:
        count = len(self.index)
        lengths = {name: len(getattr(self, name)) for name in self.__slots__ if getattr(self, name) is not None}
        assert set(lengths.values()) == {count}, lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRows:
    """What there is once a token, of some of the samples."""

    tokens: Rows
    """[L] prompt and response ids."""

    loss_mask: GivenRows
    """[R] 1 where the model wrote the token; None means everywhere."""

    rollout_log_probs: GivenRows = field(default_factory=dict)
    """[R] the engine's log-probs."""

    teacher_log_probs: GivenRows = field(default_factory=dict)
    """[R] the teacher's, for on-policy distillation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """An iteration's samples in batch order, ready to be scheduled, with the rows of some of them; names are slime's.

    Shapes: S samples; sample s has L tokens, of which the last R are its response.
    """

    total_lengths: Integers
    """[S] L."""

    response_lengths: Integers
    """[S] R."""

    rewards: Floats
    """[S] as the advantages see them, see `rewards.post_process_rewards`."""

    raw_reward: npt.NDArray[np.float64]
    """[S] as reported."""

    truncated: Mask
    """[S] 1 iff the status is `truncated`."""

    sample_indices: Integers
    """[S] `index`."""

    group_indices: Integers
    """[S] `group_index`."""

    rollout_ids: Integers
    """[S] never missing; siblings share one."""

    loss_mask_sums: Integers
    """[S] trained tokens of the sample."""

    rollout_mask_sums: Integers
    """[S] trained tokens of all samples of its rollout: the denominator of the loss."""

    source_names: list[str]
    """[S] `unknown` where the sample does not say."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    """[S] each: what else the user's functions want to know of a sample."""

    tokens: Rows = field(default_factory=dict)
    """[L] prompt and response ids, of the type they came in."""

    loss_masks: Rows = field(default_factory=dict)
    """[R] zero for removed samples."""

    rollout_log_probs: Rows | None = None
    """[R] the engine's log-probs, zeros where a fully masked sample brought none; None if no sample has any."""

    teacher_log_probs: Rows | None = None
    """[R] the teacher's, likewise."""

    nuclei: Mapping[int, Any] | None = None
    """What each response token was drawn from, a `Nuclei` each."""

    routed_experts: Rows | None = None
    """What the engine says of the experts that the tokens went to, flat."""

    @property
    def sample_count(self) -> int:
        return len(self.total_lengths)


def convert_samples(samples: SampleColumns, rewards: Floats) -> TrainBatch:
    """Turn samples and their normalised `rewards` [S] into a batch, without rows yet."""
    count = len(samples.index)
    assert len(rewards) == count, (len(rewards), count)
    group_indices = np.asarray(samples.group_index, dtype=np.int64)
    rollout_ids = fill_rollout_ids(samples.rollout_id)
    check_rollouts_stay_in_group(rollout_ids, group_indices)
    mask_sums = np.where(np.asarray(samples.remove_sample, dtype=bool), 0, samples.trained_tokens).astype(np.int64)
    return TrainBatch(
        total_lengths=np.asarray(samples.total_length, dtype=np.int64),
        response_lengths=np.asarray(samples.response_length, dtype=np.int64),
        rewards=rewards,
        raw_reward=override_raw_rewards(samples.reward, samples.raw_reward_override),
        truncated=np.array([status == "truncated" for status in samples.status], dtype=np.uint8),
        sample_indices=np.asarray(samples.index, dtype=np.int64),
        group_indices=group_indices,
        rollout_ids=rollout_ids,
        loss_mask_sums=mask_sums,
        rollout_mask_sums=sum_by_rollout(mask_sums, rollout_ids),
        source_names=[name or "unknown" for name in samples.source_name or [None] * count],
    )


def with_rows(
    batch: TrainBatch,
    rows: SampleRows,
    *,
    nuclei: Mapping[int, Any] | None = None,
    routed_experts: Rows | None = None,
) -> TrainBatch:
    """The batch with these rows in place of those it had."""
    masks = expand_loss_masks(rows.loss_mask, batch.response_lengths, batch.loss_mask_sums == 0)
    return replace(
        batch,
        tokens=rows.tokens,
        loss_masks=masks,
        nuclei=nuclei,
        routed_experts=routed_experts,
        rollout_log_probs=fill_log_probs("rollout_log_probs", rows.rollout_log_probs, masks),
        teacher_log_probs=fill_log_probs("teacher_log_probs", rows.teacher_log_probs, masks),
    )


def complete_log_probs(batch: TrainBatch, names: Sequence[str]) -> TrainBatch:
    """The batch with these columns of log-probs, which other samples of the iteration have."""
    for name in names:
        if getattr(batch, name) is None:
            filled: dict[str, Any] = {name: _filled(name, {}, batch.loss_masks)}
            batch = replace(batch, **filled)
    return batch


def fill_rollout_ids(rollout_ids: Sequence[int | None]) -> Integers:
    """[S] ids with each missing one replaced, in order, by the smallest integer from 0 that no other sample has."""
    filled = np.array([-1 if value is None else value for value in rollout_ids], dtype=np.int64)
    missing = np.array([value is None for value in rollout_ids], dtype=bool)
    taken = np.unique(filled[~missing])
    free = np.setdiff1d(np.arange(missing.sum() + len(taken)), taken, assume_unique=True)
    filled[missing] = free[: missing.sum()]
    return filled


def check_rollouts_stay_in_group(rollout_ids: Integers, group_indices: Integers) -> None:
    """Refuse a rollout id under two prompts: their losses would be pooled as if they were siblings.

    A generate function that counts from 0 in each shard gives such ids.
    """
    _, first, member_of = np.unique(rollout_ids, return_index=True, return_inverse=True)
    stray = np.flatnonzero(group_indices != group_indices[first][member_of])
    if len(stray):
        position = int(stray[0])
        groups = int(group_indices[first][member_of][position]), int(group_indices[position])
        raise DataError(
            f"rollout_id {rollout_ids[position]} stands for attempts at two prompts,"
            f" group_index {groups[0]} and {groups[1]}",
            hint="let the generate function derive `rollout_id` from `sample.index`, or leave it None",
        )


def expand_loss_masks(
    loss_masks: GivenRows, response_lengths: Integers, remove_sample: npt.NDArray[np.bool_]
) -> dict[int, Mask]:
    """[R] masks by position: ones where the sample has none, zeros where it is to be removed."""
    expanded = {}
    for position, mask in loss_masks.items():
        length = int(response_lengths[position])
        row = np.ones(length, dtype=np.uint8) if mask is None else np.asarray(mask, dtype=np.uint8)
        if len(row) != length:
            raise DataError(f"sample at position {position} has {len(row)} loss_mask for {length} response tokens")
        expanded[position] = np.zeros_like(row) if remove_sample[position] else row
    return expanded


def sum_by_rollout(mask_sums: Integers, rollout_ids: Integers) -> Integers:
    """[S] for each sample the sum of `mask_sums` over the samples of the same rollout."""
    _, member_of = np.unique(rollout_ids, return_inverse=True)
    totals = np.zeros(member_of.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(totals, member_of, mask_sums)
    return totals[member_of]


def override_raw_rewards(rewards: FloatColumn, overrides: Sequence[float | None] | None) -> npt.NDArray[np.float64]:
    """[S] the override where there is one, else the reward."""
    if overrides is None:
        return np.asarray(rewards, dtype=np.float64)
    pairs = zip(rewards, overrides, strict=True)
    return np.array([reward if override is None else override for reward, override in pairs], dtype=np.float64)


def fill_log_probs(name: str, rows: GivenRows, masks: Mapping[int, Mask]) -> dict[int, Floats] | None:
    """[R] log-probs of the samples with masks, zeros for a fully masked one that has none; None if none has any.

    slime looks at the first sample only to learn whether all of them have the column.
    """
    return None if all(row is None for row in rows.values()) else _filled(name, rows, masks)


def _filled(name: str, rows: GivenRows, masks: Mapping[int, Mask]) -> dict[int, Floats]:
    filled = {}
    for position, mask in masks.items():
        row = rows.get(position)
        if row is None and mask.any():
            raise DataError(f"sample at position {position} has no {name}, while others have")
        values = np.zeros(len(mask), dtype=np.float32) if row is None else np.asarray(row, dtype=np.float32)
        if len(values) != len(mask):
            raise DataError(f"sample at position {position} has {len(values)} {name} for {len(mask)} response tokens")
        filled[position] = values
    return filled
