"""Policy and value losses per token; weighting and summing them is `reducers`' part (spec §E.4, E.6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slime_stages.errors import UsageError
from stages.train.algorithm.ratios import AllReduce, exp_log_ratio, sample_means
from stages.train.algorithm.rewards import AdvantageEstimator


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRange:
    """How far the new policy's ratio may leave 1 before a token stops pulling."""

    eps_clip: float = 0.2
    """Below: ratio ≥ 1 - eps_clip."""

    eps_clip_high: float | None = None
    """Above: ratio ≤ 1 + eps_clip_high; None means eps_clip."""

    eps_clip_c: float | None = None
    """Dual clip (arXiv 1912.09729): with a negative advantage A the loss is at most -c·A; above 1, None for off."""

    def __post_init__(self) -> None:
        if self.eps_clip_c is not None and self.eps_clip_c <= 1:
            raise UsageError(f"`eps_clip_c` is {self.eps_clip_c}, not above 1", hint="the usual value is 3.0")

    def clamp(self, ratio: Tensor) -> Tensor:
        """[N] the ratio within the range."""
        high = self.eps_clip if self.eps_clip_high is None else self.eps_clip_high
        return ratio.clamp(1 - self.eps_clip, 1 + high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """A loss and its metrics for N response tokens, under slime's metric names."""

    pg_loss: Tensor
    """[N] to be minimised."""

    ppo_kl: Tensor
    """[N] old minus new log-prob, the sample's mean of it for gspo; detached."""

    pg_clipfrac: Tensor
    """[N] 1 where clipping changed the loss (cispo: the ratio)."""


def policy_loss(
    estimator: AdvantageEstimator,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip: ClipRange,
    loss_mask: Tensor,
    sample_index: Tensor,
    sample_count: int,
    all_reduce: AllReduce | None = None,
) -> PolicyLoss:
    """The estimator's objective for N tokens, from new and old log-probs and advantages, all [N].

    `loss_mask` and `sample_index` [N] and `all_reduce` (over context parallel ranks) are gspo's, which takes its
    ratio per sample.
    """
    ppo_kl = old_log_probs - log_probs
    if estimator == "cispo":
        return cispo_loss(ppo_kl, log_probs, advantages, clip=clip)
    if estimator == "gspo":
        means = sample_means(ppo_kl, loss_mask, sample_index, sample_count=sample_count, all_reduce=all_reduce)
        ppo_kl = means[sample_index]
    return clipped_loss(ppo_kl, advantages, clip=clip)


def clipped_loss(ppo_kl: Tensor, advantages: Tensor, *, clip: ClipRange) -> PolicyLoss:
    """PPO's clipped objective (arXiv 1707.06347), from k = old - new log-prob [N] and advantages [N].

    max(-ratio·A, -clip(ratio)·A) with ratio = exp(-k), and the dual clip on top where it is on.
    """
    ratio = exp_log_ratio(-ppo_kl)
    free, clipped = -ratio * advantages, -clip.clamp(ratio) * advantages
    loss = torch.maximum(free, clipped)
    if clip.eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(-clip.eps_clip_c * advantages, loss), loss)
    return PolicyLoss(pg_loss=loss, ppo_kl=ppo_kl.detach(), pg_clipfrac=(clipped > free).to(loss.dtype))


def cispo_loss(ppo_kl: Tensor, log_probs: Tensor, advantages: Tensor, *, clip: ClipRange) -> PolicyLoss:
    """CISPO (arXiv 2506.13585): -stop_gradient(clip(ratio))·A·log_prob, so that clipped tokens still teach.

    The paper clips above only: eps_clip 1.0, eps_clip_high about 4.
    """
    ratio = exp_log_ratio(-ppo_kl).detach()
    clipped = clip.clamp(ratio)
    loss = -clipped * advantages * log_probs
    return PolicyLoss(pg_loss=loss, ppo_kl=ppo_kl.detach(), pg_clipfrac=(clipped != ratio).to(loss.dtype))


def off_policy_kept(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    loss_mask: Tensor,
    sample_index: Tensor,
    sample_count: int,
    opsm_delta: float = 1e-4,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """[N] the factor of off-policy sequence masking: 0 on tokens with A < 0 of a sample that drifted, else 1.

    A sample drifted if its mean of old - new log-prob exceeds `opsm_delta`. `opsm_clipfrac` is 1 minus this factor,
    reduced like any other metric; slime sums it over samples unreduced.
    """
    ppo_kl = (old_log_probs - log_probs).detach()
    drift = sample_means(ppo_kl, loss_mask, sample_index, sample_count=sample_count, all_reduce=all_reduce)
    masked = (advantages < 0) & (drift > opsm_delta)[sample_index]
    return (~masked).to(log_probs.dtype)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float = 0.2
) -> tuple[Tensor, Tensor]:
    """([N] the larger of the clipped and the free squared error, [N] 1 where the clipped one was larger)."""
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    clipped_error, free_error = (clipped - returns).square(), (values - returns).square()
    return torch.maximum(clipped_error, free_error), (clipped_error > free_error).to(values.dtype).detach()
