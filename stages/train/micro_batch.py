"""A micro-batch as losses look at it: flat tokens, and the same sample by sample, under slime's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stages.train.algorithm.conversion import LOG_PROBS, TrainBatch
from stages.train.megatron.packing import PackedMicroBatch, PackedSample
from stages.train.replay import EXPERTS

TokenColumns = dict[str, dict[int, NDArray[np.float32]]]
"""Name → position of a sample → [R]: what is known of each response token before the first optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """N response tokens of S samples on the device."""

    columns: dict[str, Tensor] = field(repr=False)
    """[N] each."""

    sample_index: Tensor = field(repr=False)
    """[N] which of the S samples a token belongs to."""

    positions: list[int]
    """[S] of the samples in the batch."""

    lengths: list[int]
    """[S] response tokens."""

    @classmethod
    def of(cls, micro_batch: PackedMicroBatch, device: torch.device) -> TokenView:
        seen, sample_index, lengths = np.unique(micro_batch.sample_index, return_inverse=True, return_counts=True)
        starts = np.cumsum(lengths) - lengths
        return cls(
            columns={name: torch.from_numpy(values).to(device) for name, values in micro_batch.columns.items()},
            sample_index=torch.from_numpy(sample_index.reshape(-1)).to(device),
            positions=micro_batch.columns["position"][starts].tolist() if len(seen) else [],
            lengths=lengths.tolist(),
        )

    @property
    def sample_count(self) -> int:
        return len(self.positions)

    def split(self, values: Tensor) -> list[Tensor]:
        """[N] to S times [R]."""
        return list(torch.split(values, self.lengths))


def packed_sample(
    batch: TrainBatch, position: int, weights: NDArray[np.float32], columns: TokenColumns | None = None
) -> PackedSample:
    """One sample with what the loss reads. `weights` [R] contain every denominator of the loss."""
    length, tokens = int(batch.response_lengths[position]), np.asarray(batch.tokens[position], np.int64)
    values: dict[str, NDArray[Any]] = {
        "position": np.full(length, position, np.int64),
        "advantages": np.full(length, batch.rewards[position], np.float32),
        "mask": batch.loss_masks[position].astype(np.float32),
        "weight": weights,
    }
    if batch.rollout_log_probs is not None:
        values["rollout_log_probs"] = np.asarray(batch.rollout_log_probs[position], np.float32)
    for name, rows in (columns or {}).items():
        if name not in ("loss_masks", EXPERTS):
            values[name] = rows[position]
    experts = (columns or {}).get(EXPERTS)
    return PackedSample(
        tokens=tokens,
        response_length=length,
        share_key=int(batch.group_indices[position]),
        columns=values,
        nuclei=None if batch.nuclei is None else batch.nuclei[position],
        routed_experts=None if experts is None else experts[position].reshape(len(tokens) - 1, -1).astype(np.int64),
    )


def sample_table(batch: TrainBatch, positions: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What is known of these samples as a whole, a list or a tensor [S] for each of slime's names."""
    chosen = np.asarray(positions, np.int64)
    table: dict[str, Any] = {
        "tokens": [_tensor(batch.tokens[p], np.int64, device) for p in positions],
        "total_lengths": batch.total_lengths[chosen].tolist(),
        "response_lengths": batch.response_lengths[chosen].tolist(),
        "rewards": batch.rewards[chosen].tolist(),
        "raw_reward": batch.raw_reward[chosen].tolist(),
        "truncated": batch.truncated[chosen].tolist(),
        "sample_indices": batch.sample_indices[chosen].tolist(),
        "group_indices": batch.group_indices[chosen].tolist(),
        "rollout_ids": batch.rollout_ids[chosen].tolist(),
        "loss_masks": [_tensor(batch.loss_masks[p], np.int32, device) for p in positions],
        "rollout_mask_sums": torch.from_numpy(batch.rollout_mask_sums[chosen].astype(np.float32)).to(device),
        "source_names": [batch.source_names[p] for p in positions],
    }
    table["unconcat_tokens"] = table["tokens"]
    for name in LOG_PROBS:
        if (rows := getattr(batch, name)) is not None:
            table[name] = [_tensor(rows[p], np.float32, device) for p in positions]
    if batch.nuclei is not None:
        table["rollout_top_p_token_ids"] = [batch.nuclei[p].ids.tolist() for p in positions]
        table["rollout_top_p_token_offsets"] = [batch.nuclei[p].offsets.tolist() for p in positions]
    return table | {name: [values[p] for p in positions] for name, values in batch.columns.items() if name not in table}


def token_table(columns: TokenColumns, positions: Sequence[int], device: torch.device) -> dict[str, list[Tensor]]:
    """What is known of their response tokens."""
    return {
        name: [_tensor(rows[p], np.float32, device) for p in positions]
        for name, rows in columns.items()
        if name != EXPERTS
    }


def _tensor(row: Any, dtype: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(row, dtype)).to(device)
