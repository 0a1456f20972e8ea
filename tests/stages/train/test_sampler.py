"""The gap between engine and trainer, with the weights that the samples come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slime_stages.run.rundir import RunDir
from stages.train.megatron.packing import PackedMicroBatch
from stages.train.report import staleness_metrics
from stages.train.sampler import chosen_positions, sampler_probs_diff, sampler_weights
from tests.stages.train.test_batch import PLAN, batch, sample


@dataclass
class FixedTrainer:
    """Gives every token the same probability."""

    probability: float

    def log_probs(self, micro_batches: list[PackedMicroBatch]) -> list[torch.Tensor]:
        counts = [len(each.targets) for each in micro_batches]
        return [torch.full((count,), self.probability).log() for count in counts]


def gap(trainer: FixedTrainer, data: Any) -> float | None:
    given: Any = trainer
    return sampler_probs_diff(given, data)


def test_the_gap_is_of_probabilities_over_the_tokens_that_are_trained_on() -> None:
    samples = [sample(0), sample(1, length=4)]
    samples[0].rollout_log_probs = [float(np.log(0.5)), float(np.log(0.7))]
    samples[1].rollout_log_probs = [float(np.log(0.2))] * 4
    samples[1].loss_mask = [0, 0, 0, 1]

    found = gap(FixedTrainer(0.5), batch(samples, [1.0, 0.0]))

    assert found == pytest.approx((0.0 + 0.2 + 0.3) / 3)


def test_without_log_probs_or_trained_tokens_there_is_nothing_to_compare() -> None:
    unknown = [sample(0), sample(1)]
    for each in unknown:
        each.rollout_log_probs = None

    assert gap(FixedTrainer(0.5), batch(unknown, [1.0, 0.0])) is None
    assert gap(FixedTrainer(0.5), batch([sample(0), sample(1)], [None, None])) is None


def test_the_samples_compared_are_spread_over_those_with_trained_tokens() -> None:
    trained = np.ones(100, np.int64)
    trained[:50] = 0

    picked = chosen_positions(trained)

    assert (len(picked), picked[0], picked[-1]) == (16, 50, 99)
    assert set(np.diff(picked)) <= {3, 4}
    assert chosen_positions(np.array([0, 2, 3])) == [1, 2]
    assert chosen_positions(np.zeros(3, np.int64)) == []


def test_only_older_weights_that_are_kept_are_compared_with(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.weights_path(3).mkdir(parents=True)

    def weights(iteration: int, policy_version: int) -> Path | None:
        plan = PLAN.model_copy(update={"iteration": iteration, "policy_version": policy_version})
        stage: Any = SimpleNamespace(run=run, plan=plan)
        return sampler_weights(stage)

    assert weights(4, 3) == run.weights_path(3)
    assert weights(3, 3) is None
    assert weights(4, 2) is None


def test_the_lag_is_told_in_versions_and_the_gap_without_it_only_where_they_differ() -> None:
    late = PLAN.model_copy(update={"iteration": 5})

    assert staleness_metrics(late, 0.001) == {"train/staleness": 2.0, "train/sampler_probs_diff": 0.001}
    assert staleness_metrics(late.model_copy(update={"policy_version": 5}), None) == {"train/staleness": 0.0}
