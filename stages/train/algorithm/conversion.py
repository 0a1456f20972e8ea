"""From the samples of an iteration to what the optimiser steps over (spec §A.5, M.1).

Needs the whole iteration at once: rollout ids, mask sums and reward groups reach across shards. Samples stand in batch
order, which is by `index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """Columns of the samples to train on, as they come from rollout and reward; any sequence of length S will do.

    Shapes: S samples; sample s has L tokens, of which the last R are its response.
    """

    index: IntegerColumn
    """Counter of the sample over the run."""

    group_index: IntegerColumn
    """Counter of the prompt over the run."""

    rollout_id: Sequence[int | None]
    """Execution the sample came from; siblings share it."""

    tokens: Sequence[npt.ArrayLike]
    """[S][L] prompt and response ids."""

    response_length: IntegerColumn
    """R of each sample."""

    loss_mask: Sequence[npt.ArrayLike | None]
    """[S][R] 1 where the model wrote the token; None means everywhere."""

    status: Sequence[str]
    """`completed`, `truncated`, `aborted` or `failed`."""

    reward: FloatColumn
    """Raw reward; unscored samples do not come this far."""

    remove_sample: BooleanColumn
    """True zeroes the mask; the sample still counts in its group's statistics and in its rollout."""

    rollout_log_probs: Sequence[npt.ArrayLike | None] | None = None
    """[S][R] the engine's log-probs."""

    teacher_log_probs: Sequence[npt.ArrayLike | None] | None = None
    """[S][R] the teacher's, for on-policy distillation."""

    raw_reward_override: Sequence[float | None] | None = None
    """`metadata["raw_reward"]`: what to report instead of the reward."""

    source_name: Sequence[str | None] | None = None
    """Data set the prompt came from."""

    def __post_init__(self) -> None:
        count = len(self.index)
        lengths = {name: len(getattr(self, name)) for name in self.__slots__ if getattr(self, name) is not None}
        assert set(lengths.values()) == {count}, lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """An iteration's samples in batch order, ready to be scheduled; names are slime's.

    Shapes: S samples; sample s has L tokens, of which the last R are its response.
    """

    tokens: list[npt.NDArray[np.integer]]
    """[S][L] prompt and response ids, of the type they came in."""

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

    loss_masks: list[Mask]
    """[S][R] zero for removed samples."""

    loss_mask_sums: Integers
    """[S] trained tokens of the sample."""

    rollout_mask_sums: Integers
    """[S] trained tokens of all samples of its rollout: the denominator of the loss."""

    rollout_log_probs: list[Floats] | None
    """[S][R] the engine's log-probs, zeros where a fully masked sample brought none."""

    teacher_log_probs: list[Floats] | None
    """[S][R] the teacher's, likewise."""

    source_names: list[str]
    """[S] `unknown` where the sample does not say."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    """[S] each: what else the user's functions want to know of a sample."""

    nuclei: list[Any] | None = None
    """[S] what each response token was drawn from, a `Nuclei` each."""

    routed_experts: dict[int, Floats] | None = None
    """Position → what the engine says of the experts that the tokens went to, flat."""


def convert_samples(samples: SampleColumns, rewards: Floats) -> TrainBatch:
    """Turn samples and their normalised `rewards` [S] into a batch."""
    assert len(rewards) == len(samples.index), (len(rewards), len(samples.index))
    tokens = [np.asarray(row) for row in samples.tokens]
    response_lengths = np.asarray(samples.response_length, dtype=np.int64)
    group_indices = np.asarray(samples.group_index, dtype=np.int64)
    rollout_ids = fill_rollout_ids(samples.rollout_id)
    check_rollouts_stay_in_group(rollout_ids, group_indices)
    masks = expand_loss_masks(samples.loss_mask, response_lengths, samples.remove_sample)
    mask_sums = np.array([mask.sum(dtype=np.int64) for mask in masks], dtype=np.int64)
    return TrainBatch(
        tokens=tokens,
        total_lengths=np.array([len(row) for row in tokens], dtype=np.int64),
        response_lengths=response_lengths,
        rewards=rewards,
        raw_reward=override_raw_rewards(samples.reward, samples.raw_reward_override),
        truncated=np.array([status == "truncated" for status in samples.status], dtype=np.uint8),
        sample_indices=np.asarray(samples.index, dtype=np.int64),
        group_indices=group_indices,
        rollout_ids=rollout_ids,
        loss_masks=masks,
        loss_mask_sums=mask_sums,
        rollout_mask_sums=sum_by_rollout(mask_sums, rollout_ids),
        rollout_log_probs=fill_log_probs("rollout_log_probs", samples.rollout_log_probs, masks),
        teacher_log_probs=fill_log_probs("teacher_log_probs", samples.teacher_log_probs, masks),
        source_names=[name or "unknown" for name in samples.source_name or [None] * len(tokens)],
    )


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
    loss_masks: Sequence[npt.ArrayLike | None], response_lengths: Integers, remove_sample: BooleanColumn
) -> list[Mask]:
    """[S][R] masks: ones where the sample has none, zeros where it is to be removed."""
    expanded = []
    for position, (mask, length, is_removed) in enumerate(
        zip(loss_masks, response_lengths.tolist(), remove_sample, strict=True)
    ):
        row = np.ones(length, dtype=np.uint8) if mask is None else np.asarray(mask, dtype=np.uint8)
        if len(row) != length:
            raise DataError(f"sample at position {position} has {len(row)} loss_mask for {length} response tokens")
        expanded.append(np.zeros_like(row) if is_removed else row)
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


def fill_log_probs(name: str, rows: Sequence[npt.ArrayLike | None] | None, masks: list[Mask]) -> list[Floats] | None:
    """[S][R] log-probs, zeros for a fully masked sample that has none; None if no sample has any.

    slime looks at the first sample only to learn whether all of them have the column.
    """
    if rows is None or all(row is None for row in rows):
        return None
    filled = []
    for position, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        if row is None and mask.any():
            raise DataError(f"sample at position {position} has no {name}, while others have")
        values = np.zeros(len(mask), dtype=np.float32) if row is None else np.asarray(row, dtype=np.float32)
        if len(values) != len(mask):
            raise DataError(f"sample at position {position} has {len(values)} {name} for {len(mask)} response tokens")
        filled.append(values)
    return filled
