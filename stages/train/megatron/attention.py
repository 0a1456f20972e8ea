"""Core attention over packed rows, put into Megatron's layer spec in place of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stages.train.megatron.share import AttentionShare, RowShare

if TYPE_CHECKING:
    from stages.train.megatron.routing import RowRouting


@dataclass(slots=True, kw_only=True)
class PlacedAttention:
    """An `AttentionShare` on the device. G groups, Q queries and L keys of the longest."""

    queries: Tensor
    """[G, Q]"""

    keys: Tensor
    """[G, L]"""

    in_order: bool
    """Queries and keys are the whole row as it stands, so nothing needs gathering."""

    mask: Tensor | None
    """[G or 1, 1, Q, L] added to the scores: 0 or minus infinity; None is plain causal."""


@dataclass(kw_only=True)
class PackedRow(PackedSeqParams):  # type: ignore[misc]
    """Travels through Megatron's layers to the core attention and the router, also through recomputation."""

    batches: list[PlacedAttention]

    output_rows: Tensor | None
    """[T] where each row stands in the batches' concatenated outputs; None: in order."""

    is_padded: bool
    """After these outputs stands a row of zeros, for padding."""

    sequences: PackedSeqParams | None = None
    """The same as sequences one after the other, where it is no more than that."""

    routing: RowRouting | None = None
    """Where the tokens' experts are written down, or taken from."""


def place_row(share: RowShare, *, dtype: torch.dtype, device: torch.device) -> PackedRow:
    """Move the attention layout of a rank's rows to the device."""
    count = len(share.rows)
    batches = [_place(each, count, dtype, device) for each in share.attention]
    in_order = len(batches) == 1 and batches[0].in_order
    return PackedRow(
        qkv_format="sbhd",
        batches=batches,
        is_padded=share.padding > 0,
        output_rows=None if in_order else torch.from_numpy(_output_rows(share)).to(device),
        sequences=_sequences(share, device),
    )


def _place(share: AttentionShare, count: int, dtype: torch.dtype, device: torch.device) -> PlacedAttention:
    mask = None
    if share.visible is not None:
        hidden = torch.from_numpy(~share.visible).to(device).unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    whole = np.arange(count)
    return PlacedAttention(
        queries=torch.from_numpy(share.queries).to(device),
        keys=torch.from_numpy(share.keys).to(device),
        in_order=np.array_equal(share.queries.ravel(), whole) and np.array_equal(share.keys.ravel(), whole),
        mask=mask,
    )


def _output_rows(share: RowShare) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Inverse of the batches' queries; padding has the row of zeros."""
    output_rows = np.full(len(share.rows), sum(batch.queries.size for batch in share.attention), np.int64)
    offset = 0
    for batch in share.attention:
        output_rows[batch.queries[batch.real]] = offset + np.flatnonzero(batch.real)
        offset += batch.queries.size
    return output_rows


def _sequences(share: RowShare, device: torch.device) -> PackedSeqParams | None:
    """None where a prompt is shared or the row is cut over ranks: attention is then not by whole sequences. Padding is
    one of its own."""
    if any(batch.visible is not None for batch in share.attention):
        return None
    starts = [row for batch in share.attention for row in batch.keys[:, 0].tolist()]
    starts += [len(share.rows) - share.padding] if share.padding else []
    bounds = np.append(sorted(starts), len(share.rows)).astype(np.int32)
    lengths, ends = int(np.diff(bounds).max(initial=0)), torch.from_numpy(bounds).to(device)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=lengths, max_seqlen_kv=lengths
    )


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
        context = parallel_state.get_context_parallel_group()
        if context.size() > 1:
            key = gather_from_sequence_parallel_region(key.contiguous(), group=context)
            value = gather_from_sequence_parallel_region(value.contiguous(), group=context)
        outputs = [self._attend(query, key, value, batch) for batch in packed_seq_params.batches]
        if packed_seq_params.is_padded:
            outputs.append(query.new_zeros(1, query.shape[2] * query.shape[3]))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if packed_seq_params.output_rows is not None:
            output = output.index_select(0, packed_seq_params.output_rows)
        return output.unsqueeze(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, batch: PlacedAttention) -> Tensor:
        queries = _by_group(query, batch.queries, batch)
        keys, values = (_by_group(each, batch.keys, batch) for each in (key, value))
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


def _by_group(rows: Tensor, chosen: Tensor, batch: PlacedAttention) -> Tensor:
    """[T, 1, heads, width] to [G, heads, Q or L, width]."""
    flat = rows.squeeze(1)
    selected = flat if batch.in_order else flat.index_select(0, chosen.flatten())
    return selected.reshape(*chosen.shape, *flat.shape[1:]).transpose(1, 2)
