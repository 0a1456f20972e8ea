"""Importance weights between engine and trainer, with ratios 1, 1/2, 4 and 1/8, and per sample 1/√2 and 1/√2."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stages.train.algorithm.mismatch import (
    MismatchCorrection,
    MismatchOptions,
    correct_mismatch,
    log_prob_abs_diff,
    mismatch_metrics,
    weight_moments,
)

LOG_2 = math.log(2)
ROLLOUT = torch.tensor([-1.0, -1.0, -3.0, -1.0])
TRAIN = ROLLOUT + torch.tensor([0.0, -LOG_2, 2 * LOG_2, -3 * LOG_2])
SAMPLES = torch.tensor([0, 0, 1, 1])
ALL = torch.ones(4)


def correct(mask: torch.Tensor = ALL, train: torch.Tensor = TRAIN, **options: Any) -> MismatchCorrection:
    return correct_mismatch(train, ROLLOUT, mask, SAMPLES, 2, options=MismatchOptions(**options))


def near(*values: float) -> Any:
    return pytest.approx(list(values), abs=1e-5)


def test_truncated_importance_sampling_caps_the_ratio() -> None:
    correction = correct()

    assert correction.mask is None
    assert correction.weights.tolist() == near(1.0, 0.5, 2.0, 0.125)
    assert correction.metrics["tis"].tolist() == near(1.0, 0.5, 4.0, 0.125)
    assert correction.metrics["tis_clipfrac"].tolist() == [0, 0, 1, 0]
    assert correction.metrics["tis_abs"].tolist() == near(0.0, 0.5, 3.0, 0.875)


def test_truncation_can_have_a_floor_or_go_without_one() -> None:
    assert correct(low=0.25).weights.tolist() == near(1.0, 0.5, 2.0, 0.25)
    assert correct(low=0.25, mode="truncate").weights.tolist() == near(1.0, 0.5, 2.0, 0.125)


def test_icepop_drops_what_lies_outside() -> None:
    correction = correct(low=0.25, mode="icepop")

    assert correction.weights.tolist() == near(1.0, 0.5, 0.0, 0.0)
    assert correction.metrics["tis_clipfrac"].tolist() == [0, 0, 1, 1]


def test_masking_keeps_the_weight_and_leaves_the_token_out() -> None:
    correction = correct(low=0.25, mode="mask")

    assert correction.weights.tolist() == near(1.0, 0.5, 4.0, 0.125)
    assert correction.mask is not None
    assert correction.mask.tolist() == [1, 1, 0, 0]


def test_a_sequences_ratio_is_the_product_of_its_trained_tokens_and_the_geometric_one_their_mean() -> None:
    assert correct(level="sequence").weights.tolist() == near(0.5, 0.5, 0.5, 0.5)
    assert correct(level="geometric").weights.tolist() == near(*[2**-0.5] * 4)
    assert correct(level="sequence", mask=torch.tensor([1.0, 0, 1, 1])).weights.tolist() == near(1, 1, 0.5, 0.5)


def test_rejection_has_a_level_and_bounds_of_its_own() -> None:
    correction = correct(high=10.0, rejection="geometric", rejection_low=0.8, mask=torch.tensor([1.0, 0, 1, 1]))

    assert correction.mask is not None
    assert correction.mask.tolist() == [1, 0, 0, 0]
    assert correction.metrics["mis_rs_masked"].tolist() == [0, 0, 1, 1]


def test_a_veto_takes_the_whole_sample_but_looks_at_trained_tokens_only() -> None:
    assert correct(veto_threshold=0.2).mask.tolist() == [1, 1, 0, 0]  # type: ignore[union-attr]
    assert correct(veto_threshold=0.2, mask=torch.tensor([1.0, 1, 1, 0])).mask.tolist() == [1, 1, 1, 0]  # type: ignore[union-attr]


def test_the_mean_weight_is_of_tokens_or_of_samples_and_adds_up_over_micro_batches() -> None:
    weights, mask = torch.tensor([1.0, 0.5, 2.0, 0.125]), torch.tensor([1.0, 1, 1, 0])

    assert weight_moments(weights, mask, SAMPLES, 2, "token").tolist() == near(3.5, 3)
    assert weight_moments(weights, mask, SAMPLES, 2, "sequence").tolist() == near(0.75 + 2.0, 2)
    assert weight_moments(weights, ALL * 0, SAMPLES, 2, "sequence").tolist() == [0, 0]


def test_weights_carry_no_gradient() -> None:
    train = TRAIN.clone().requires_grad_()

    for mode in ("clip", "truncate", "mask", "icepop"):
        assert not correct(train=train, mode=mode, level="sequence").weights.requires_grad


def test_the_gap_is_absolute_per_token() -> None:
    assert log_prob_abs_diff(torch.tensor([-1.0, -2.5]), torch.tensor([-1.5, -2.0])).tolist() == [0.5, 0.5]


def test_the_kl_of_engine_to_trainer_has_two_estimates() -> None:
    metrics = mismatch_metrics(TRAIN, ROLLOUT)

    assert metrics["mis_kl"].tolist() == near(0, LOG_2, -2 * LOG_2, 3 * LOG_2)
    assert metrics["mis_k3_kl"].tolist() == near(0, LOG_2 - 0.5, 3 - 2 * LOG_2, 3 * LOG_2 - 0.875)
