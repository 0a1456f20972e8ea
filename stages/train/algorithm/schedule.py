"""Which samples make up which optimiser step, rank and micro-batch (spec §E.8).

First rollouts are cut into steps, then the samples of a step are packed into micro-batches, then those are dealt to
data parallel ranks. All samples of a rollout are in one step; all ranks have the same number of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from slime_stages.errors import DataError, UsageError
from stages.train.algorithm.packing import (
    Bin,
    Cost,
    pack_first_fit,
    partition_balanced,
    split_largest,
    split_over_capacity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """The part of the config, and of the parallel layout, that decides the schedule."""

    global_batch_size: int
    """Rollouts per optimiser step."""

    dp_size: int = 1
    """Data parallel ranks."""

    cp_size: int = 1
    """Context parallel ranks; they share a micro-batch, so that its token budget grows by as much."""

    micro_batch_size: int = 1
    """Samples per micro-batch, where it is static."""

    use_dynamic_batch_size: bool = False
    """Pack micro-batches by tokens."""

    max_tokens_per_gpu: int | None = None
    """Token budget of a dynamic micro-batch per GPU."""

    micro_batch_multiple: int = 1
    """A rank's micro-batches come in multiples of this: `microbatch_group_size_per_vp_stage` under interleaving."""

    balance_data: bool = False
    """Deal micro-batches so that ranks get equal cost; otherwise in turn."""

    balance_by_flops: bool = False
    """Pack by cost, not first fit; needs `use_dynamic_batch_size`, implies `balance_data`."""

    def __post_init__(self) -> None:
        if self.use_dynamic_batch_size and self.max_tokens_per_gpu is None:
            raise UsageError("`use_dynamic_batch_size` needs `max_tokens_per_gpu`", hint="--max-tokens-per-gpu 9216")
        if self.balance_by_flops and not self.use_dynamic_batch_size:
            raise UsageError("`balance_by_flops` needs `use_dynamic_batch_size`", hint="--use-dynamic-batch-size")
        for name in ("global_batch_size", "dp_size", "cp_size", "micro_batch_size", "micro_batch_multiple"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` is {getattr(self, name)}, not at least 1")

    @property
    def alignment(self) -> int:
        """The number of micro-batches of a step is a multiple of this."""
        return self.dp_size * self.micro_batch_multiple

    @property
    def token_budget(self) -> int | None:
        """Tokens a micro-batch of several samples may have; None if static."""
        if not self.use_dynamic_batch_size or self.max_tokens_per_gpu is None:
            return None
        return self.max_tokens_per_gpu * self.cp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelSchedule:
    """Where each sample goes. Positions count the samples of the iteration in batch order."""

    partitions: list[list[int]]
    """[dp][…] positions of a rank's samples, in the order it works through them."""

    micro_batch_indices: list[list[list[int]]]
    """[dp][micro-batch][…] indices into the rank's partition; end to end they count from 0."""

    num_microbatches: list[int]
    """[step] micro-batches per rank."""

    global_batch_sizes: list[int]
    """[step] rollouts."""

    trailing: list[int]
    """Positions of samples whose rollouts do not fill a step: not trained, to be carried over or reported dropped."""

    oversized: list[int]
    """Positions of scheduled samples longer than the token budget: alone in a micro-batch, which may not fit."""

    def micro_batches(self, rank: int, step: int) -> list[list[int]]:
        """Positions of each micro-batch that `rank` works through in `step`."""
        start = sum(self.num_microbatches[:step])
        chosen = self.micro_batch_indices[rank][start : start + self.num_microbatches[step]]
        return [[self.partitions[rank][index] for index in micro_batch] for micro_batch in chosen]


def build_dp_schedule(
    total_lengths: npt.ArrayLike,
    rollout_ids: npt.ArrayLike,
    options: ScheduleOptions,
    *,
    costs: npt.ArrayLike | None = None,
) -> DataParallelSchedule:
    """Schedule S samples of `total_lengths` tokens; `costs` [S] are their FLOPs for balancing, lengths by default."""
    lengths: list[int] = np.asarray(total_lengths, dtype=np.int64).tolist()
    ids: list[int] = np.asarray(rollout_ids, dtype=np.int64).tolist()
    sample_costs: Sequence[Cost] = lengths if costs is None else np.asarray(costs).tolist()
    assert len(lengths) == len(ids) == len(sample_costs), (len(lengths), len(ids), len(sample_costs))
    steps, trailing = split_steps(ids, options.global_batch_size)

    partitions: list[list[int]] = [[] for _ in range(options.dp_size)]
    micro_batch_indices: list[list[list[int]]] = [[] for _ in range(options.dp_size)]
    num_microbatches = []
    for step, positions in enumerate(steps):
        micro_batches = pack_step(step, positions, lengths, options, costs=sample_costs)
        num_microbatches.append(len(micro_batches) // options.dp_size)
        for rank, dealt in enumerate(deal_micro_batches(micro_batches, options, costs=sample_costs)):
            for micro_batch in dealt:
                start = len(partitions[rank])
                partitions[rank].extend(micro_batch)
                micro_batch_indices[rank].append(list(range(start, start + len(micro_batch))))
    budget = options.token_budget
    scheduled = sorted(chain.from_iterable(steps))
    return DataParallelSchedule(
        partitions=partitions,
        micro_batch_indices=micro_batch_indices,
        num_microbatches=num_microbatches,
        global_batch_sizes=[options.global_batch_size] * len(steps),
        trailing=trailing,
        oversized=[] if budget is None else [position for position in scheduled if lengths[position] > budget],
    )


def split_steps(rollout_ids: Sequence[int], global_batch_size: int) -> tuple[list[list[int]], list[int]]:
    """(positions of the samples of each step, positions left over), by rollouts in order of first occurrence."""
    positions_of: dict[int, list[int]] = {}
    for position, rollout_id in enumerate(rollout_ids):
        positions_of.setdefault(rollout_id, []).append(position)
    rollouts = list(positions_of.values())
    step_count = len(rollouts) // global_batch_size
    if step_count == 0:
        raise DataError(
            f"{len(rollouts)} rollouts do not fill a step of global_batch_size {global_batch_size}",
            hint=f"generate more, or `--global-batch-size {max(len(rollouts), 1)}`",
        )
    starts = range(0, step_count * global_batch_size, global_batch_size)
    steps = [list(chain.from_iterable(rollouts[start : start + global_batch_size])) for start in starts]
    return steps, sorted(chain.from_iterable(rollouts[step_count * global_batch_size :]))


def pack_step(
    step: int, positions: list[int], lengths: Sequence[int], options: ScheduleOptions, *, costs: Sequence[Cost]
) -> list[Bin]:
    """Micro-batches of a step's `positions`, their number a multiple of `options.alignment`.

    A dynamic micro-batch of several samples keeps to the token budget, also under `balance_by_flops`, unlike slime's.
    """
    alignment, budget = options.alignment, options.token_budget
    if len(positions) < alignment:
        raise UsageError(
            f"step {step} has {len(positions)} samples for {alignment} micro-batches at least"
            f" (dp_size {options.dp_size} × {options.micro_batch_multiple})",
            hint=f"raise `global_batch_size` ({options.global_batch_size}), or train on fewer data parallel ranks",
        )
    if budget is None:
        return _pack_static(step, positions, options)
    step_lengths = [lengths[position] for position in positions]
    if options.balance_by_flops:
        count = min(max(math.ceil(sum(step_lengths) / budget), alignment), len(positions))
        bins = partition_balanced([costs[position] for position in positions], count, equal_size=False)
        bins = split_over_capacity(bins, step_lengths, budget)
    else:
        bins = pack_first_fit(step_lengths, budget)
    target_count = math.ceil(len(bins) / alignment) * alignment
    bins = split_largest(bins, step_lengths, target_count)
    if len(bins) % alignment:
        raise UsageError(
            f"step {step} has {len(positions)} samples, which cannot form a multiple of {alignment} micro-batches"
            f" within {budget} tokens each",
            hint="raise `max_tokens_per_gpu` or `global_batch_size`, or train on fewer data parallel ranks",
        )
    return [[positions[index] for index in bin_] for bin_ in bins]


def deal_micro_batches(micro_batches: list[Bin], options: ScheduleOptions, *, costs: Sequence[Cost]) -> list[list[Bin]]:
    """[dp][…] equally many micro-batches for each rank: in turn, or balanced by summed cost."""
    ranks, count = options.dp_size, len(micro_batches)
    if not (options.balance_data or options.balance_by_flops):
        return [micro_batches[rank::ranks] for rank in range(ranks)]
    sums = [sum(costs[position] for position in micro_batch) for micro_batch in micro_batches]
    assert count % ranks == 0, (count, ranks)
    return [[micro_batches[index] for index in dealt] for dealt in partition_balanced(sums, ranks, equal_size=True)]


def _pack_static(step: int, positions: list[int], options: ScheduleOptions) -> list[Bin]:
    size, alignment = options.micro_batch_size, options.alignment
    chunks = [positions[start : start + size] for start in range(0, len(positions), size)]
    if len(chunks) % alignment:
        raise UsageError(
            f"step {step} has {len(positions)} samples, {len(chunks)} micro-batches of micro_batch_size {size}:"
            f" not a multiple of {alignment}",
            hint="--use-dynamic-batch-size --max-tokens-per-gpu N packs any number of samples",
        )
    return chunks
