"""Corrections for the gap between the engine that sampled and the trainer that learns (spec §E.5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.train.algorithm.ratios import exp_log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchCorrection:
    """Importance weights of N response tokens, and what they look like."""

    weights: Tensor
    """[N] factor of the policy loss, detached."""

    metrics: dict[str, Tensor]
    """[N] each: `tis` the ratio before clipping, `tis_clipfrac` 1 where the weight differs, `tis_abs` |ratio - 1|."""


def truncated_importance_weights(
    train_log_probs: Tensor, rollout_log_probs: Tensor, *, tis_clip: float = 2.0, tis_clip_low: float = 0.0
) -> MismatchCorrection:
    """Truncated importance sampling: train/rollout ratio [N] clamped to [tis_clip_low, tis_clip]."""
    ratio = exp_log_ratio((train_log_probs - rollout_log_probs).detach())
    return _correction(ratio, ratio.clamp(tis_clip_low, tis_clip))


def icepop_weights(
    train_log_probs: Tensor, rollout_log_probs: Tensor, *, tis_clip: float = 2.0, tis_clip_low: float = 0.0
) -> MismatchCorrection:
    """IcePop (arXiv 2510.18855): the ratio [N] where it lies in [tis_clip_low, tis_clip], 0 elsewhere."""
    ratio = exp_log_ratio((train_log_probs - rollout_log_probs).detach())
    return _correction(ratio, torch.where((ratio >= tis_clip_low) & (ratio <= tis_clip), ratio, 0.0))


def log_prob_abs_diff(train_log_probs: Tensor, rollout_log_probs: Tensor) -> Tensor:
    """[N] |train - rollout| log-prob per token, the metric `train_rollout_logprob_abs_diff`."""
    return (train_log_probs - rollout_log_probs).abs().detach()


def _correction(ratio: Tensor, weights: Tensor) -> MismatchCorrection:
    clipped = (weights != ratio).to(ratio.dtype)
    metrics = {"tis": ratio, "tis_clipfrac": clipped, "tis_abs": (ratio - 1).abs()}
    return MismatchCorrection(weights=weights, metrics=metrics)
