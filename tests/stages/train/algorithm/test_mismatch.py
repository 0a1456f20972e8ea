"""Importance weights between engine and trainer, with ratios 1, 1/2, 4 and 1/8."""

from __future__ import annotations

import math

import pytest
import torch

from stages.train.algorithm.mismatch import icepop_weights, log_prob_abs_diff, truncated_importance_weights

LOG_2 = math.log(2)
ROLLOUT = torch.tensor([-1.0, -1.0, -3.0, -1.0])
TRAIN = ROLLOUT + torch.tensor([0.0, -LOG_2, 2 * LOG_2, -3 * LOG_2])


def test_truncation_caps_the_ratio() -> None:
    correction = truncated_importance_weights(TRAIN, ROLLOUT)

    assert correction.weights.tolist() == pytest.approx([1.0, 0.5, 2.0, 0.125], abs=1e-6)
    assert correction.metrics["tis"].tolist() == pytest.approx([1.0, 0.5, 4.0, 0.125], abs=1e-5)
    assert correction.metrics["tis_clipfrac"].tolist() == [0, 0, 1, 0]
    assert correction.metrics["tis_abs"].tolist() == pytest.approx([0.0, 0.5, 3.0, 0.875], abs=1e-5)


def test_truncation_can_have_a_floor() -> None:
    correction = truncated_importance_weights(TRAIN, ROLLOUT, tis_clip_low=0.25)

    assert correction.weights.tolist() == pytest.approx([1.0, 0.5, 2.0, 0.25], abs=1e-6)


def test_icepop_drops_what_lies_outside() -> None:
    correction = icepop_weights(TRAIN, ROLLOUT, tis_clip=2.0, tis_clip_low=0.25)

    assert correction.weights.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-6)
    assert correction.metrics["tis_clipfrac"].tolist() == [0, 0, 1, 1]


def test_weights_carry_no_gradient() -> None:
    train = TRAIN.clone().requires_grad_()

    assert not truncated_importance_weights(train, ROLLOUT).weights.requires_grad
    assert not icepop_weights(train, ROLLOUT).weights.requires_grad


def test_the_gap_is_absolute_per_token() -> None:
    assert log_prob_abs_diff(torch.tensor([-1.0, -2.5]), torch.tensor([-1.5, -2.0])).tolist() == [0.5, 0.5]
