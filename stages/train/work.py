"""An iteration's samples cut into optimizer steps, ranks and micro-batches, with the weight of each token.

A sample whose every loss term is zero, because its group agrees or its mask is empty, needs no backward pass. It
still passes forward: denominators and metrics are the same as if it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slime_stages.config import Config
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.reducers import count_step_tokens, token_weights
from stages.train.algorithm.schedule import DataParallelSchedule, ScheduleOptions, build_dp_schedule
from stages.train.megatron.packing import PackedLater, PackedSample
from stages.train.micro_batch import TokenColumns, packed_sample
from stages.train.replay import EXPERTS


@dataclass(slots=True, kw_only=True)
class Work:
    """What one rank does in the steps of an iteration."""

    config: Config = field(repr=False)
    schedule: DataParallelSchedule
    rank: int
    """Among the data-parallel ones."""
    batch: TrainBatch = field(repr=False)
    columns: TokenColumns = field(repr=False)
    step_of: NDArray[np.int32]
    """[S] optimizer step; -1 for none."""
    backward: NDArray[np.bool_]
    """[S] needs a backward pass for the policy's loss."""

    def packed(self, step: int, *, backward: bool | None = None, with_experts: bool = True) -> PackedLater:
        """The rank's micro-batches, or of each the samples that do or do not need a backward pass; no empty ones."""
        samples, chosen = self._samples(step, with_experts=with_experts), []
        for positions in self.schedule.micro_batches(self.rank, step):
            wanted = [p for p in positions if backward is None or bool(self.backward[p]) is backward]
            chosen.append([samples[p] for p in wanted if p in samples])
        return PackedLater([each for each in chosen if each])

    def denominator(self, step: int) -> float:
        """What slime divides its sums by: the step's rollouts, or with calculate_per_token_loss its tokens."""
        if not self.config.algorithm.calculate_per_token_loss:
            return float(self.config.global_batch_size)
        return float(self._token_count(step))

    def _token_count(self, step: int) -> int:
        """Trained tokens of the step, over all ranks."""
        return count_step_tokens(torch.from_numpy(self.batch.loss_mask_sums[self.step_of == step]))

    def _samples(self, step: int, *, with_experts: bool) -> dict[int, PackedSample]:
        """Those of this rank that have a response, by position."""
        columns = {name: rows for name, rows in self.columns.items() if with_experts or name != EXPERTS}
        mine = [p for positions in self.schedule.micro_batches(self.rank, step) for p in positions]
        weights = step_weights(self.batch, mine, self.config, step_token_count=self._token_count(step))
        return {p: packed_sample(self.batch, p, weights[p], columns) for p in mine if self.batch.response_lengths[p]}


def schedule_of(batch: TrainBatch, config: Config, *, dp_size: int, model: Any = None) -> DataParallelSchedule:
    """`model` is Megatron's config, for what a sample costs."""
    options = ScheduleOptions(
        global_batch_size=config.global_batch_size,
        dp_size=dp_size,
        cp_size=config.train.context_parallel_size,
        micro_batch_size=config.train.micro_batch_size,
        use_dynamic_batch_size=config.train.use_dynamic_batch_size,
        max_tokens_per_gpu=config.train.max_tokens_per_gpu,
        balance_data=config.train.balance_data,
        balance_by_flops=config.train.balance_by_flops,
    )
    costs = sample_flops(batch.total_lengths, model) if config.train.balance_by_flops else None
    return build_dp_schedule(batch.total_lengths.tolist(), batch.rollout_ids.tolist(), options, costs=costs)


def sample_flops(lengths: NDArray[np.int64], model: Any) -> NDArray[np.float64]:
    """[S] multiplications and additions of a forward pass through a transformer of Megatron's config, without its
    vocabulary; attention sees half of all pairs of tokens."""
    heads = model.num_attention_heads * model.kv_channels
    keys = model.num_query_groups * model.kv_channels
    matrices = model.hidden_size * (2 * heads + 2 * keys + 3 * model.ffn_hidden_size)
    tokens = lengths.astype(np.float64)
    flops: NDArray[np.float64] = 2.0 * model.num_layers * (tokens * matrices + tokens**2 * heads)
    return flops


def micro_batches_of(schedule: DataParallelSchedule, rank: int) -> list[list[int]]:
    """Positions of each micro-batch that the rank works through, of all steps."""
    return [each for step in range(len(schedule.num_microbatches)) for each in schedule.micro_batches(rank, step)]


def steps_of(schedule: DataParallelSchedule, count: int) -> NDArray[np.int32]:
    step_of = np.full(count, -1, np.int32)
    for rank in range(len(schedule.partitions)):
        for step in range(len(schedule.num_microbatches)):
            for positions in schedule.micro_batches(rank, step):
                step_of[positions] = step
    return step_of


def needs_backward(batch: TrainBatch, config: Config) -> NDArray[np.bool_]:
    """[S] whether the gradient of any loss term of the sample can differ from zero."""
    algorithm = config.algorithm
    needed: NDArray[np.bool_] = batch.loss_mask_sums > 0
    if algorithm.loss_type == "custom_loss":
        return np.ones_like(needed)
    is_all = algorithm.loss_type != "policy_loss" or algorithm.has_token_advantages
    is_all = (
        is_all
        or config.train.enable_mtp_training
        or bool(algorithm.entropy_coef)
        or (algorithm.use_kl_loss and algorithm.kl_loss_coef != 0)
    )
    return needed if is_all else needed & (batch.rewards != 0)


def step_weights(
    batch: TrainBatch, positions: Sequence[int], config: Config, *, step_token_count: int
) -> dict[int, NDArray[np.float32]]:
    """The weight of every response token of these samples in the loss of their step: position → [R]."""
    masks = [batch.loss_masks[position] for position in positions]
    lengths = [len(mask) for mask in masks]
    weights = token_weights(
        torch.from_numpy(np.concatenate(masks)),
        torch.from_numpy(np.repeat(np.arange(len(positions)), lengths)),
        torch.from_numpy(batch.rollout_mask_sums[list(positions)]),
        global_batch_size=config.global_batch_size,
        calculate_per_token_loss=config.algorithm.calculate_per_token_loss,
        step_token_count=step_token_count,
    ).numpy()
    parts = np.split(weights, np.cumsum(lengths)[:-1])
    return dict(zip(positions, parts, strict=True))
