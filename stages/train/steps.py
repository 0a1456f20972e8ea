"""The optimizer steps of an iteration: schedule, pack, and what to skip.

A sample whose every loss term is zero, because its group agrees or its mask is empty, needs no backward pass. It
still passes forward: denominators and metrics are the same as if it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.progress import Progress
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.reducers import count_step_tokens, token_weights
from stages.train.algorithm.schedule import DataParallelSchedule, ScheduleOptions, build_dp_schedule
from stages.train.batch import IterationBatch
from stages.train.megatron.packing import PackedMicroBatch, PackedSample, pack_samples
from stages.train.megatron.step import StepResult, Trainer
from stages.train.objective import Objective, SampleStatistics, packed_sample


@dataclass(slots=True, kw_only=True)
class StepsTaken:
    """What the first steps of an iteration have found out: all that the next one needs besides the policy."""

    results: list[StepResult] = field(default_factory=list)
    statistics: SampleStatistics = field(repr=False)
    """Of this rank's samples."""
    old_log_probs: dict[int, NDArray[np.float32]] = field(repr=False)
    """[R] by position: the policy before the first step, for the samples of this rank; see `_old_log_probs`."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """What the steps of an iteration did."""

    results: list[StepResult]
    schedule: DataParallelSchedule
    statistics: SampleStatistics = field(repr=False)
    """Of all samples, over all ranks."""
    backward: NDArray[np.bool_]
    """[S] went through the backward pass."""
    step_of: NDArray[np.int32]
    """[S] optimizer step; -1 for none."""
    old_log_probs: dict[int, NDArray[np.float32]] = field(repr=False)
    """As in `StepsTaken`."""
    is_further: bool
    """Steps were taken here, after those of an earlier attempt."""

    @property
    def total_count(self) -> int:
        return len(self.schedule.num_microbatches)

    @property
    def are_complete(self) -> bool:
        """False: told to stop, with steps left to take."""
        return len(self.results) == self.total_count


def train_steps(
    trainer: Trainer,
    data: IterationBatch,
    config: Config,
    *,
    title: str,
    taken: StepsTaken | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Steps:
    """Take the steps after `taken`, until `should_stop`, which is asked before each and tells all ranks the same.

    All ranks call it with the same data.
    """
    batch = data.batch
    lengths, rollouts = batch.total_lengths.tolist(), batch.rollout_ids.tolist()
    schedule = build_dp_schedule(lengths, rollouts, schedule_options(config, trainer))
    step_of = _step_of(schedule, data.sample_count)
    backward = needs_backward(batch, config)
    taken = taken or _none_taken(trainer, data, schedule, config)
    first, total = len(taken.results), len(schedule.num_microbatches)
    objective = Objective(config=config, statistics=taken.statistics)
    with Progress(title, total=total, unit="steps") as progress:
        progress.update(first)
        for step in range(first, total):
            if should_stop():
                break
            weights = step_weights(batch, np.flatnonzero(step_of == step), config)
            samples = {p: packed_sample(batch, p, w, taken.old_log_probs.get(p)) for p, w in weights.items()}
            mine = schedule.micro_batches(trainer.data_parallel_rank, step)
            result = _take_step(trainer, objective, *_packed(mine, samples, backward))
            taken.results.append(result)
            progress.advance(loss=f"{result.metrics.get('loss', 0.0):.4f}", grad_norm=f"{result.grad_norm:.3f}")
    _gather(taken.statistics)
    return Steps(
        results=taken.results,
        schedule=schedule,
        statistics=taken.statistics,
        backward=backward & (step_of >= 0),
        step_of=step_of,
        old_log_probs=taken.old_log_probs,
        is_further=len(taken.results) > first,
    )


def _none_taken(trainer: Trainer, data: IterationBatch, schedule: DataParallelSchedule, config: Config) -> StepsTaken:
    return StepsTaken(
        statistics=SampleStatistics.empty(data.sample_count),
        old_log_probs=_old_log_probs(trainer, data.batch, schedule, config),
    )


def _take_step(
    trainer: Trainer, objective: Objective, with_gradient: list[PackedMicroBatch], without: list[PackedMicroBatch]
) -> StepResult:
    config = objective.config
    return trainer.train_step(
        with_gradient,
        objective,
        forward_only=without,
        entropy="gradient" if config.algorithm.entropy_coef else "value",
        increment=config.global_batch_size,
    )


def schedule_options(config: Config, trainer: Trainer) -> ScheduleOptions:
    return ScheduleOptions(
        global_batch_size=config.global_batch_size,
        dp_size=trainer.data_parallel_size,
        micro_batch_size=config.train.micro_batch_size,
        use_dynamic_batch_size=config.train.use_dynamic_batch_size,
        max_tokens_per_gpu=config.train.max_tokens_per_gpu,
        balance_data=config.train.balance_data,
    )


def needs_backward(batch: TrainBatch, config: Config) -> NDArray[np.bool_]:
    """[S] whether the gradient of any loss term of the sample can differ from zero."""
    needed: NDArray[np.bool_] = batch.loss_mask_sums > 0
    return needed if config.algorithm.entropy_coef else needed & (batch.rewards != 0)


def step_weights(batch: TrainBatch, positions: NDArray[np.int64], config: Config) -> dict[int, NDArray[np.float32]]:
    """The weight of every response token of a step's samples in the step's loss: position → [R]."""
    masks = [batch.loss_masks[position] for position in positions]
    lengths = [len(mask) for mask in masks]
    weights = token_weights(
        torch.from_numpy(np.concatenate(masks)),
        torch.from_numpy(np.repeat(np.arange(len(positions)), lengths)),
        torch.from_numpy(batch.rollout_mask_sums[positions]),
        global_batch_size=config.global_batch_size,
        calculate_per_token_loss=config.algorithm.calculate_per_token_loss,
        step_token_count=count_step_tokens(torch.from_numpy(batch.loss_mask_sums[positions])),
    ).numpy()
    parts = np.split(weights, np.cumsum(lengths)[:-1])
    return dict(zip(positions.tolist(), parts, strict=True))


def _packed(
    micro_batches: list[list[int]], samples: dict[int, PackedSample], backward: NDArray[np.bool_]
) -> tuple[list[PackedMicroBatch], list[PackedMicroBatch]]:
    """The rank's micro-batches, each split by whether its samples need a backward pass; empty parts left out."""
    halves: tuple[list[PackedMicroBatch], list[PackedMicroBatch]] = ([], [])
    for positions in micro_batches:
        for half, wanted in zip(halves, (True, False), strict=True):
            chosen = [samples[p] for p in positions if bool(backward[p]) is wanted and samples[p].response_length]
            if chosen:
                half.append(pack_samples(chosen))
    return halves


def _old_log_probs(
    trainer: Trainer, batch: TrainBatch, schedule: DataParallelSchedule, config: Config
) -> dict[int, NDArray[np.float32]]:
    """[R] by position, for the samples of this rank: the policy before the first step.

    Empty where they are the new ones, detached: with one step only, the ratio is 1.
    """
    algorithm = config.algorithm
    steps = len(schedule.num_microbatches)
    mine = [
        p for step in range(steps) for bin_ in schedule.micro_batches(trainer.data_parallel_rank, step) for p in bin_
    ]
    if algorithm.use_rollout_logprobs and batch.rollout_log_probs is not None:
        return {p: np.asarray(batch.rollout_log_probs[p], np.float32) for p in mine}
    if steps == 1 and algorithm.advantage_estimator != "gspo":
        return {}
    old: dict[int, NDArray[np.float32]] = {}
    for step in range(steps):
        for positions in schedule.micro_batches(trainer.data_parallel_rank, step):
            chosen = [p for p in positions if batch.response_lengths[p]]
            if not chosen:
                continue
            empty = {p: np.zeros(int(batch.response_lengths[p]), np.float32) for p in chosen}
            packed = pack_samples([packed_sample(batch, p, empty[p], None) for p in chosen])
            [log_probs] = trainer.log_probs([packed])
            parts = np.split(log_probs.float().cpu().numpy(), np.cumsum(batch.response_lengths[chosen])[:-1])
            old |= dict(zip(chosen, parts, strict=True))
    return old


def _step_of(schedule: DataParallelSchedule, count: int) -> NDArray[np.int32]:
    step_of = np.full(count, -1, np.int32)
    for rank in range(len(schedule.partitions)):
        for step in range(len(schedule.num_microbatches)):
            for positions in schedule.micro_batches(rank, step):
                step_of[positions] = step
    return step_of


def _gather(statistics: SampleStatistics) -> None:
    """Add up what the data-parallel ranks noted; each sample was on one of them."""
    from megatron.core import parallel_state

    group: Any = parallel_state.get_data_parallel_group()
    if group.size() == 1:
        return
    for name, values in statistics.sums.items():
        tensor = torch.from_numpy(values)
        if torch.cuda.is_available():
            tensor = tensor.cuda()
        torch.distributed.all_reduce(tensor, group=group)
        statistics.sums[name] = tensor.cpu().numpy()
