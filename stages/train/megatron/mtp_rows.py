"""The rows that the layers for multi-token prediction (MTP) compute, of a packed row of samples.

Layer k, counted from 1, sees at token i of a sample the hidden state of the layer before it, and token i + k. From both
it predicts token i + k + 1. At the end of a prompt that depends on the response already, so that no two samples share a
row here. Plain numpy: nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stages.train.megatron.packing import IntArray, PackedMicroBatch, PackedSample, pack_samples

WEIGHT = "weight"
"""The column that a prediction is weighed by in the loss: that of the token it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpRow:
    """What one layer computes, T rows."""

    packed: PackedMicroBatch = field(repr=False)
    """Its tokens are those that are seen k further on, its targets what is predicted from there."""

    sources: IntArray
    """[T] rows of the layer before whose hidden states are seen; the first layer's are those of the whole model."""


def mtp_rows(micro_batch: PackedMicroBatch, count: int) -> Iterator[MtpRow]:
    """Of the layers 1 to `count`, in order; none is empty."""
    known = list(_samples(micro_batch))
    for _ in range(count):
        known = [(later, rows) for sample, rows in known if (later := _advanced(sample)) is not None]
        if not known:
            known = [(_nothing_to_predict(), np.zeros(2, np.int64))]
        packed = pack_samples([sample for sample, _ in known])
        sources = np.empty(len(packed.tokens), np.int64)
        for rows, (_, before) in zip(packed.sample_rows, known, strict=True):
            sources[rows] = before[:-1]
        yield MtpRow(packed=packed, sources=sources)
        known = [(sample, rows) for (sample, _), rows in zip(known, packed.sample_rows, strict=True)]


def _samples(micro_batch: PackedMicroBatch) -> Iterator[tuple[PackedSample, IntArray]]:
    """What these layers want to know of each sample with a response, and its rows."""
    bounds = np.searchsorted(micro_batch.sample_index, np.arange(len(micro_batch.sample_rows) + 1))
    for rows, start, end in zip(micro_batch.sample_rows, bounds[:-1], bounds[1:], strict=True):
        if end > start:
            sample = PackedSample(
                tokens=np.append(micro_batch.tokens[rows], micro_batch.targets[end - 1]),
                response_length=int(end - start),
                columns={WEIGHT: micro_batch.columns[WEIGHT][start:end]},
            )
            yield sample, rows


def _advanced(sample: PackedSample) -> PackedSample | None:
    """Without its first token; a response token that nothing is left to predict from is predicted no more."""
    skipped = 0 if sample.prompt_length > 1 else 1
    if sample.response_length == skipped:
        return None
    return PackedSample(
        tokens=sample.tokens[1:],
        response_length=sample.response_length - skipped,
        columns={WEIGHT: sample.columns[WEIGHT][skipped:]},
    )


def _nothing_to_predict() -> PackedSample:
    """Stands where no sample is long enough, so that the layer is part of every pass."""
    return PackedSample(tokens=np.zeros(2, np.int64), response_length=1, columns={WEIGHT: np.zeros(1, np.float32)})
