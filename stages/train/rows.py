"""What is as long as a sample, its tokens and what is known of each: read for the samples that a rank works through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.data.schema import ROLLOUT
from slime_stages.data.shards import flat_lists, list_rows, read_rows
from slime_stages.errors import SlimeStagesError
from stages.train.algorithm.conversion import LOG_PROBS, SampleRows, TrainBatch, complete_log_probs, with_rows
from stages.train.collectives import sum_over_ranks
from stages.train.megatron.packing import Nuclei
from stages.train.replay import engine_experts, nuclei_of, replay_columns

LENGTHS = ("total_length", "response_length")
"""The others are checked against them as they are read."""

Part = tuple[Sequence[int], pa.Table]
"""Positions of samples, and their rows in the same order."""


class RowSource(Protocol):
    """Where the rows are."""

    def parts(self, positions: Sequence[int]) -> Iterator[Part]:
        """The rows of the samples at these positions, some at a time."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows in memory."""

    table: pa.Table = field(repr=False)

    def parts(self, positions: Sequence[int]) -> Iterator[Part]:
        yield positions, self.table.take(np.asarray(positions, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """Rows in rollout shards, of which only the row groups with the wanted samples are read."""

    paths: Mapping[int, Path]
    """By shard."""
    hints: Mapping[int, str]
    """By shard: the command that makes it again."""
    columns: Sequence[str]
    shard: NDArray[np.int32]
    """[S] which one each sample is in."""
    row: NDArray[np.int32]
    """[S] where it stands there."""

    def parts(self, positions: Sequence[int]) -> Iterator[Part]:
        wanted = np.asarray(positions, np.int64)
        for shard in np.unique(self.shard[wanted]).tolist():
            here = wanted[self.shard[wanted] == shard]
            try:
                for chosen, table in read_rows(self.paths[shard], ROLLOUT, self.row[here], self.columns):
                    yield here[chosen].tolist(), table
            except SlimeStagesError as error:
                error.hint = self.hints[shard]
                raise


def row_columns(config: Config) -> tuple[str, ...]:
    """The columns of the rollout shards that are read for a rank's own samples alone."""
    teacher = ("teacher_log_probs",) if config.algorithm.use_opd else ()
    return (*LENGTHS, "tokens", "loss_mask", "rollout_log_probs", *teacher, *replay_columns(config))


def trained_tokens(masks: pa.ChunkedArray, response_lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """[S] tokens with mask 1; where there is no mask, all."""
    flat, offsets = flat_lists(masks)
    before = np.append(0, np.cumsum(flat, dtype=np.int64))
    return np.where(masks.is_null().to_numpy(), response_lengths, before[offsets[1:]] - before[offsets[:-1]])


def read_rows_of(batch: TrainBatch, source: RowSource, positions: Sequence[int], config: Config) -> TrainBatch:
    """The batch with the rows of the samples at these positions."""
    found: dict[str, dict[int, Any]] = {name: {} for name in SampleRows.__dataclass_fields__}
    nuclei: dict[int, Nuclei] = {}
    experts: dict[int, NDArray[np.float32]] = {}
    for chosen, table in source.parts(positions):
        for name in found.keys() & set(table.column_names):
            found[name] |= zip(chosen, list_rows(table[name]), strict=True)
        nuclei |= zip(chosen, nuclei_of(table, config), strict=False)
        experts |= engine_experts(table, config, batch.sample_indices[list(chosen)], chosen)
    return with_rows(
        batch,
        SampleRows(**found),
        nuclei=nuclei if any(len(each.ids) for each in nuclei.values()) else None,
        routed_experts=experts if config.train.use_rollout_routing_replay else None,
    )


def agreed(batch: TrainBatch) -> TrainBatch:
    """The batch with each column that the samples of any rank have, so that all take the same steps. All call it."""
    is_known = torch.tensor([getattr(batch, name) is not None for name in LOG_PROBS], dtype=torch.int64)
    anywhere = sum_over_ranks(is_known).bool().tolist()
    return complete_log_probs(batch, [name for name, known in zip(LOG_PROBS, anywhere, strict=True) if known])
