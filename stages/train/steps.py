"""The optimizer steps of an iteration: one after the other, until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from slime_stages.config import Config
from slime_stages.errors import DataError
from slime_stages.progress import Progress
from stages.train import corrections
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.schedule import DataParallelSchedule
from stages.train.batch import IterationBatch
from stages.train.collectives import sum_over_ranks
from stages.train.critic import ValueObjective
from stages.train.hooks import Hooks
from stages.train.megatron import parallel
from stages.train.megatron.packing import PackedMicroBatch
from stages.train.megatron.step import EntropyMode, StepResult, Trainer
from stages.train.micro_batch import TokenColumns, TokenView
from stages.train.objective import Objective, SampleStatistics
from stages.train.prepare import CPU, Preparation, column_means, with_masks
from stages.train.rows import agreed
from stages.train.work import Work, micro_batches_of, needs_backward, schedule_of, steps_of


@dataclass(slots=True, kw_only=True)
class StepsTaken:
    """What the first steps of an iteration have found out: all that the next one needs besides the policy."""

    results: list[StepResult] = field(default_factory=list)
    critic_results: list[StepResult] = field(default_factory=list)
    """Of ppo's critic, whose steps come first."""
    statistics: SampleStatistics = field(repr=False)
    """Of this rank's samples."""
    columns: TokenColumns = field(repr=False)
    """Of this rank's samples, as they were before the first step; see `Preparation`."""

    @property
    def count(self) -> int:
        return len(self.critic_results) + len(self.results)


@dataclass(slots=True, kw_only=True)
class Steps:
    """What the steps of an iteration did."""

    results: list[StepResult]
    critic_results: list[StepResult]
    total_count: int
    """Steps that there are to take, the critic's among them."""
    schedule: DataParallelSchedule
    statistics: SampleStatistics = field(repr=False)
    """Of all samples, over all ranks."""
    backward: NDArray[np.bool_]
    """[S] went through the backward pass."""
    step_of: NDArray[np.int32]
    """[S] optimizer step; -1 for none."""
    columns: TokenColumns = field(repr=False)
    """As in `StepsTaken`."""
    batch: TrainBatch = field(repr=False)
    """As trained on, with the rows of this rank's samples."""
    column_means: dict[str, float]
    """Of all columns, over all ranks: each rollout's mean over its trained tokens weighs the same."""
    is_further: bool
    """Steps were taken here, after those of an earlier attempt."""

    @property
    def are_complete(self) -> bool:
        """False: told to stop, with steps left to take."""
        return self.count == self.total_count

    @property
    def count(self) -> int:
        """Steps taken, the critic's among them."""
        return len(self.critic_results) + len(self.results)


def train_steps(
    trainer: Trainer,
    data: IterationBatch,
    config: Config,
    *,
    title: str,
    iteration: int = 0,
    critic: Trainer | None = None,
    taken: StepsTaken | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Steps:
    """Take the steps after `taken`, until `should_stop`, which is asked before each and tells all ranks the same.

    All ranks call it with the same data. A critic takes its steps first.
    """
    hooks, size = Hooks(config), trainer.data_parallel_size
    schedule = schedule_of(data.batch, config, dp_size=size, model=trainer.config)
    batch = agreed(data.with_rows(schedule.partitions[trainer.data_parallel_rank]))
    policy_count = _planned(schedule, config, iteration)
    critic_count = 0 if critic is None else len(schedule.num_microbatches)
    total = critic_count + policy_count
    with Progress(title, total=total, unit="steps") as progress:
        for model in (trainer,) if critic is None else (trainer, critic):
            model.watch(lambda number, count: progress.advance(0, micro_batch=f"{number}/{count}"))
        taken = taken or _none_taken(trainer, critic, batch, schedule, hooks, iteration)
        work, first = _work(trainer, with_masks(batch, taken.columns), schedule, taken, config), taken.count
        progress.update(first)
        for number in range(first, total):
            if should_stop():
                break
            if critic is not None and number < critic_count:
                result = _take_critic_step(critic, work, number)
                taken.critic_results.append(result)
            else:
                result = _take_step(trainer, work, hooks, taken.statistics, iteration, number - critic_count)
                taken.results.append(result)
            progress.advance(loss=f"{result.metrics.get('loss', 0.0):.4f}", grad_norm=f"{result.grad_norm:.3f}")
    return _outcome(work, taken, policy_count=policy_count, total=total, first=first)


def _outcome(work: Work, taken: StepsTaken, *, policy_count: int, total: int, first: int) -> Steps:
    _gather(taken.statistics)
    return Steps(
        results=taken.results,
        critic_results=taken.critic_results,
        total_count=total,
        schedule=work.schedule,
        statistics=taken.statistics,
        backward=work.backward & (work.step_of >= 0) & (policy_count > 0),
        step_of=work.step_of,
        columns=taken.columns,
        batch=work.batch,
        column_means=column_means(work.batch, taken.columns, micro_batches_of(work.schedule, work.rank)),
        is_further=taken.count > first,
    )


def _planned(schedule: DataParallelSchedule, config: Config, iteration: int) -> int:
    """Steps of the policy: none while its critic begins alone."""
    return 0 if iteration < config.algorithm.num_critic_only_steps else len(schedule.num_microbatches)


def _none_taken(
    trainer: Trainer,
    critic: Trainer | None,
    batch: TrainBatch,
    schedule: DataParallelSchedule,
    hooks: Hooks,
    iteration: int,
) -> StepsTaken:
    preparation = Preparation(
        trainer=trainer,
        critic=critic,
        batch=batch,
        config=hooks.config,
        hooks=hooks,
        micro_batches=micro_batches_of(schedule, trainer.data_parallel_rank),
        step_count=len(schedule.num_microbatches),
        iteration=iteration,
    )
    return StepsTaken(statistics=SampleStatistics.empty(batch.sample_count), columns=preparation.columns())


def _work(
    trainer: Trainer, batch: TrainBatch, schedule: DataParallelSchedule, taken: StepsTaken, config: Config
) -> Work:
    return Work(
        config=config,
        schedule=schedule,
        rank=trainer.data_parallel_rank,
        batch=batch,
        columns=taken.columns,
        step_of=steps_of(schedule, batch.sample_count),
        backward=needs_backward(batch, config),
    )


def _take_step(
    trainer: Trainer, work: Work, hooks: Hooks, statistics: SampleStatistics, iteration: int, step: int
) -> StepResult:
    config = work.config
    with_gradient, without = work.packed(step, backward=True), work.packed(step, backward=False)
    objective = Objective(
        config=config,
        hooks=hooks,
        batch=work.batch,
        columns=work.columns,
        statistics=statistics,
        denominator=work.denominator(step),
        mean_weight=_mean_weight(config, chain(with_gradient, without)),
    )
    result = trainer.train_step(
        with_gradient,
        objective,
        forward_only=without,
        entropy=_entropy(config),
        on_logits=config.algorithm.loss_type == "custom_loss",
        increment=config.global_batch_size,
        before=lambda: hooks.before_step(trainer, iteration, step),
    )
    return _checked(result, config, f"step {step + 1}")


def _take_critic_step(critic: Trainer, work: Work, step: int) -> StepResult:
    objective, increment = ValueObjective(config=work.config), work.config.global_batch_size
    packed = work.packed(step, with_experts=False)  # those of the policy's are none of the critic's
    result = critic.train_step(packed, objective, on_logits=True, increment=increment)
    return _checked(result, work.config, f"the critic's step {step + 1}")


def _mean_weight(config: Config, micro_batches: Iterable[PackedMicroBatch]) -> float | None:
    """Of the step, for tis_batch_normalize; all ranks call it."""
    algorithm = config.algorithm
    if not (algorithm.use_tis and algorithm.tis_batch_normalize) or algorithm.custom_tis_function_path is not None:
        return None
    moments = [corrections.moments_of(algorithm, TokenView.of(each, CPU)) for each in micro_batches]
    total, count = sum_over_ranks(torch.stack([torch.zeros(2, dtype=torch.float64), *moments]).sum(0)).tolist()
    return total / count if count and total else 1.0


def _checked(result: StepResult, config: Config, what: str) -> StepResult:
    if not result.updated and config.optimizer.check_for_nan_in_loss_and_grad:
        raise DataError(
            f"gradients of {what} are not finite (norm {result.grad_norm}); nothing was trained",
            hint="look at the rewards and log-probs of its samples, or leave such steps out: "
            "--no-check-for-nan-in-loss-and-grad",
        )
    return result


def _entropy(config: Config) -> EntropyMode:
    if config.algorithm.loss_type == "sft_loss":
        return "none"
    return "gradient" if config.algorithm.entropy_coef else "value"


def _gather(statistics: SampleStatistics) -> None:
    """Add up what the data-parallel ranks noted; each sample was on one of them."""
    for name, values in statistics.sums.items():
        statistics.sums[name] = parallel.from_last_stage(sum_over_ranks(torch.from_numpy(values))).numpy()
