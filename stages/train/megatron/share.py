"""A rank's share of a packed row where the row is cut over context-parallel ranks, or must have a multiple of a length.

Each rank computes the queries of some of every group's tokens, with the keys and values of all ranks. Of every group
it has a piece near the beginning and one near the end, so that causal attention costs all ranks about the same.
Plain numpy: nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stages.train.megatron.packing import AttentionBatch, BoolArray, IntArray, PackedMicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShare:
    """A rank's queries of an `AttentionBatch`. G groups, Q queries of the longest, L keys of the longest."""

    queries: IntArray
    """[G, Q] numbers of this rank's rows."""

    keys: IntArray
    """[G, L] row numbers, where the rows of all ranks follow each other."""

    real: BoolArray
    """[G, Q] False on padding."""

    visible: BoolArray | None
    """[G or 1, Q, L] query sees key; None where plain causal attention says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShare:
    """T rows of this rank, padding included, M of whose logits are wanted."""

    rows: IntArray
    """[T] which row of the packed row each is; padding repeats its first."""

    padding: int
    """How many of the T are padding, at the end."""

    attention: tuple[AttentionShare, ...]

    logit_rows: IntArray
    """[M] numbers of this rank's rows."""

    wanted: IntArray
    """[M] which of the packed row's response tokens they predict."""


def share_of(micro_batch: PackedMicroBatch, *, rank: int = 0, size: int = 1, multiple: int = 1) -> RowShare:
    """What `rank` of `size` context-parallel ranks computes; all ranks get as many rows, a `multiple`."""
    count = len(micro_batch.tokens)
    columns = [[_columns(batch, each, size) for batch in micro_batch.attention] for each in range(size)]
    owned = [_owned_rows(micro_batch.attention, of_rank) for of_rank in columns] if size > 1 else [np.arange(count)]
    length = -(-max(len(rows) for rows in owned) // multiple) * multiple
    place = np.empty(count, np.int64)
    for each, rows in enumerate(owned):
        place[rows] = each * length + np.arange(len(rows))
    logits = place[micro_batch.logit_rows]
    wanted = np.flatnonzero(logits // max(length, 1) == rank)
    padding = length - len(owned[rank])
    return RowShare(
        rows=np.concatenate([owned[rank], np.zeros(padding, np.int64)]),
        padding=padding,
        attention=tuple(
            _attention_share(batch, place, chosen, start=rank * length, is_split=size > 1)
            for batch, chosen in zip(micro_batch.attention, columns[rank], strict=True)
            if len(chosen)
        ),
        logit_rows=logits[wanted] - rank * length,
        wanted=wanted,
    )


def _columns(batch: AttentionBatch, rank: int, size: int) -> IntArray:
    """Of the batch's L columns, the pieces `rank` and `2 size - 1 - rank` of as many as there are ranks, twice."""
    width = batch.rows.shape[1]
    piece = -(-width // (2 * size))
    pieces = [np.arange(number * piece, min((number + 1) * piece, width)) for number in (rank, 2 * size - 1 - rank)]
    return np.concatenate(pieces)


def _owned_rows(batches: Sequence[AttentionBatch], columns: Sequence[IntArray]) -> IntArray:
    parts = [
        batch.rows[:, chosen][chosen < batch.lengths[:, None]] for batch, chosen in zip(batches, columns, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _attention_share(
    batch: AttentionBatch, place: IntArray, columns: IntArray, *, start: int, is_split: bool
) -> AttentionShare:
    real = columns < batch.lengths[:, None]
    visible = batch.visible
    if is_split:
        causal = (columns[:, None] >= np.arange(batch.rows.shape[1]))[None]
        visible = causal if visible is None else visible[:, columns]
    return AttentionShare(
        queries=np.where(real, place[batch.rows[:, columns]] - start, 0),
        keys=place[batch.rows],
        real=real,
        visible=visible,
    )
