"""Corrections for the gap between the engine that sampled and the trainer that learns (spec §E.5, I.9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from stages.train.algorithm.ratios import exp_log_ratio, sample_means, sample_sums

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["clip", "truncate", "mask", "icepop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchOptions:
    """Which weights a correction gives, and which tokens it leaves out."""

    level: Level = "token"
    """Ratio of a token: its own, its sample's product, or its sample's geometric mean."""

    mode: Mode = "clip"
    """What becomes of ratios beyond the bounds: see `correct_mismatch`."""

    low: float = 0.0

    high: float = 2.0

    rejection: Level | None = None
    """Leave out tokens whose ratio at this level lies beyond `rejection_low` and `rejection_high`."""

    rejection_low: float = 0.0

    rejection_high: float = 2.0

    veto_threshold: float | None = None
    """Leave out samples with a trained token whose own ratio is below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchCorrection:
    """Importance weights of N response tokens, and what they look like."""

    weights: Tensor
    """[N] factor of the policy loss, detached."""

    mask: Tensor | None = None
    """[N] the loss mask without what is left out; None: all of it."""

    metrics: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: `tis` the ratio before clipping, `tis_clipfrac` 1 where the weight differs, `tis_abs` |ratio - 1|."""


def correct_mismatch(
    train_log_probs: Tensor,
    rollout_log_probs: Tensor,
    loss_mask: Tensor,
    sample_index: Tensor,
    sample_count: int,
    *,
    options: MismatchOptions,
) -> MismatchCorrection:
    """Weights from the train/rollout ratio of N tokens, by the options.

    A ratio beyond the bounds is moved to the nearer one (clip), to the upper one only (truncate), becomes 0 (icepop,
    arXiv 2510.18855), or its token is left out and its weight stays (mask).
    """
    log_ratio = (train_log_probs - rollout_log_probs).detach()
    ratio = level_ratio(log_ratio, loss_mask, sample_index, sample_count, options.level)
    outside = (ratio < options.low) | (ratio > options.high)
    weights, kept = ratio, loss_mask.bool()
    if options.mode == "clip":
        weights = ratio.clamp(options.low, options.high)
    elif options.mode == "truncate":
        weights = ratio.clamp(max=options.high)
    elif options.mode == "icepop":
        weights = torch.where(outside, 0.0, ratio)
    else:
        kept = kept & ~outside
    metrics = {
        "tis": ratio,
        "tis_clipfrac": (outside if options.mode == "mask" else weights != ratio).to(ratio.dtype),
        "tis_abs": (ratio - 1).abs(),
    }
    masks = [kept, *_kept(log_ratio, loss_mask, sample_index, sample_count, options, metrics)]
    leaves_out = options.mode == "mask" or len(masks) > 1
    mask = torch.stack(masks).all(0).to(loss_mask.dtype) if leaves_out else None
    return MismatchCorrection(weights=weights, mask=mask, metrics=metrics)


def _kept(
    log_ratio: Tensor,
    loss_mask: Tensor,
    sample_index: Tensor,
    sample_count: int,
    options: MismatchOptions,
    metrics: dict[str, Tensor],
) -> Iterator[Tensor]:
    """[N] for rejection and for the veto, each if it is on: what it keeps. Adds the metrics of what it does not."""
    if options.rejection is not None:
        judged = level_ratio(log_ratio, loss_mask, sample_index, sample_count, options.rejection)
        rejected = (judged < options.rejection_low) | (judged > options.rejection_high)
        metrics["mis_rs_masked"] = rejected.to(judged.dtype)
        yield ~rejected
    if options.veto_threshold is not None:
        bad = (exp_log_ratio(log_ratio) < options.veto_threshold) & loss_mask.bool()
        vetoed = (sample_sums(bad.float(), sample_index, sample_count) > 0)[sample_index]
        metrics["mis_veto_masked"] = vetoed.to(log_ratio.dtype)
        yield ~vetoed


def level_ratio(log_ratio: Tensor, loss_mask: Tensor, sample_index: Tensor, sample_count: int, level: Level) -> Tensor:
    """[N] exp of a token's log-ratio, or of the sum or the mean of those of its sample's trained tokens."""
    if level == "token":
        return exp_log_ratio(log_ratio)
    if level == "geometric":
        per_sample = sample_means(log_ratio, loss_mask, sample_index, sample_count=sample_count)
    else:
        per_sample = sample_sums(torch.where(loss_mask > 0, log_ratio, 0.0), sample_index, sample_count)
    return exp_log_ratio(per_sample)[sample_index]


def weight_moments(weights: Tensor, loss_mask: Tensor, sample_index: Tensor, sample_count: int, level: Level) -> Tensor:
    """[2] float64 sum and count of what the mean weight is of: trained tokens, or at sequence level samples with any.

    Added up over micro-batches and ranks, their quotient is what `tis_batch_normalize` divides by.
    """
    trained = loss_mask.double()
    if level == "token":
        return torch.stack([(weights.double() * trained).sum(), trained.sum()])
    means = sample_means(weights.double(), loss_mask, sample_index, sample_count=sample_count)
    counted = sample_sums(trained, sample_index, sample_count) > 0
    return torch.stack([means[counted].sum(), counted.sum().double()])


def mismatch_metrics(train_log_probs: Tensor, rollout_log_probs: Tensor) -> dict[str, Tensor]:
    """[N] each: two estimates of KL(engine ‖ trainer), and minus each one's log-probs, whose mean is its log ppl."""
    log_ratio = (train_log_probs - rollout_log_probs).detach()
    return {
        "mis_kl": -log_ratio,
        "mis_k3_kl": exp_log_ratio(log_ratio) - 1 - log_ratio,
        "mis_training_log_ppl": -train_log_probs.detach(),
        "mis_rollout_log_ppl": -rollout_log_probs,
    }


def log_prob_abs_diff(train_log_probs: Tensor, rollout_log_probs: Tensor) -> Tensor:
    """[N] |train - rollout| log-prob per token, the metric `train_rollout_logprob_abs_diff`."""
    return (train_log_probs - rollout_log_probs).abs().detach()
