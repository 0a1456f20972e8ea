"""Core attention over packed rows, put into Megatron's layer spec in place of `DotProductAttention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stages.train.megatron.packing import AttentionBatch, PackedMicroBatch


@dataclass(slots=True, kw_only=True)
class PlacedAttentionBatch:
    """An `AttentionBatch` on the device. G groups, L tokens of the longest."""

    rows: Tensor
    """[G, L]"""

    in_order: bool
    """The rows are the whole packed row as it stands, so nothing needs gathering."""

    mask: Tensor | None
    """[G, 1, L, L] added to the scores: 0 or minus infinity; None is plain causal."""


@dataclass(kw_only=True)
class PackedRow(PackedSeqParams):  # type: ignore[misc]
    """Travels through Megatron's layers to the core attention, also through recomputation."""

    batches: list[PlacedAttentionBatch]

    output_rows: Tensor | None
    """[T] where each row of the packed row stands in the batches' concatenated outputs; None: in order."""


def place_attention(micro_batch: PackedMicroBatch, *, dtype: torch.dtype, device: torch.device) -> PackedRow:
    """Move the attention layout of a micro-batch to the device."""
    count = len(micro_batch.tokens)
    batches = [_place_batch(batch, count, dtype, device) for batch in micro_batch.attention]
    in_order = len(batches) == 1 and batches[0].in_order
    output_rows = None if in_order else torch.from_numpy(_output_rows(micro_batch)).to(device)
    return PackedRow(qkv_format="sbhd", batches=batches, output_rows=output_rows)


def _place_batch(batch: AttentionBatch, count: int, dtype: torch.dtype, device: torch.device) -> PlacedAttentionBatch:
    mask = None
    if batch.visible is not None:
        hidden = torch.from_numpy(~batch.visible).to(device).unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    in_order = np.array_equal(batch.rows.ravel(), np.arange(count))
    return PlacedAttentionBatch(rows=torch.from_numpy(batch.rows).to(device), in_order=in_order, mask=mask)


def _output_rows(micro_batch: PackedMicroBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Inverse of the batches' row numbers, padding left out."""
    output_rows = np.empty(len(micro_batch.tokens), np.int64)
    offset = 0
    for batch in micro_batch.attention:
        width = batch.rows.shape[1]
        real = np.arange(width) < batch.lengths[:, None]
        output_rows[batch.rows[real]] = offset + np.flatnonzero(real)
        offset += batch.rows.size
    return output_rows


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Attention of every share group by itself, groups of similar length together."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **unused: Any) -> None:
        super().__init__(config)
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        packed_seq_params: PackedRow,
        **unused: Any,
    ) -> Tensor:
        """[T, 1, heads, width] queries and [T, 1, groups, width] keys, values to [T, 1, heads * width]."""
        outputs = [self._attend(query, key, value, batch) for batch in packed_seq_params.batches]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if packed_seq_params.output_rows is not None:
            output = output.index_select(0, packed_seq_params.output_rows)
        return output.unsqueeze(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, batch: PlacedAttentionBatch) -> Tensor:
        queries, keys, values = (_by_group(each.squeeze(1), batch).transpose(1, 2) for each in (query, key, value))
        output = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=batch.mask,
            is_causal=batch.mask is None,
            scale=self.softmax_scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return output.transpose(1, 2).flatten(2).flatten(0, 1)


def _by_group(rows: Tensor, batch: PlacedAttentionBatch) -> Tensor:
    """[T, heads, width] to [G, L, heads, width]."""
    selected = rows if batch.in_order else rows.index_select(0, batch.rows.flatten())
    return selected.reshape(*batch.rows.shape, *rows.shape[1:])
