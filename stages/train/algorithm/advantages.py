"""Advantages per response token, for each estimator, on flat tokens (spec §E.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slime_stages.errors import DataError, UsageError
from stages.train.algorithm.ratios import AllReduce
from stages.train.algorithm.rewards import AdvantageEstimator

WHITENING_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """What the policy loss and the value loss need, for N response tokens."""

    advantages: Tensor
    """[N] how much better than expected a token was."""

    returns: Tensor
    """[N] what a critic should have predicted."""


def compute_advantages(
    estimator: AdvantageEstimator,
    rewards: Tensor,
    loss_mask: Tensor,
    sample_index: Tensor,
    *,
    kl: Tensor | None = None,
    values: Tensor | None = None,
    kl_coef: float = 0.0,
    gamma: float = 1.0,
    lambd: float = 1.0,
) -> Advantages:
    """Advantages of N tokens from the normalised rewards [S] of their samples.

    `kl` [N] is the per-token penalty of `approx_kl`, `values` [N] the critic's. grpo, gspo and cispo have no use for
    `kl_coef`, as in slime: there the KL belongs in the loss.
    """
    rewards_of_tokens = rewards.float()[sample_index]
    penalty = torch.zeros_like(rewards_of_tokens) if kl is None else kl_coef * kl
    if estimator in ("grpo", "gspo", "cispo"):
        return Advantages(advantages=rewards_of_tokens, returns=rewards_of_tokens)
    if estimator == "reinforce_plus_plus_baseline":
        advantages = rewards_of_tokens - penalty
        return Advantages(advantages=advantages, returns=advantages)
    if estimator == "reinforce_plus_plus":
        returns = reinforce_plus_plus_returns(rewards, penalty, loss_mask, sample_index, gamma=gamma)
        return Advantages(advantages=returns, returns=returns)
    if estimator == "ppo":
        assert values is not None, "ppo needs a critic's values"
        token_rewards = -penalty + terminal_rewards(rewards, loss_mask, sample_index)
        return generalized_advantages(token_rewards, values, loss_mask, sample_index, gamma=gamma, lambd=lambd)
    raise UsageError(f"unknown `advantage_estimator` {estimator!r}")


@torch.no_grad()
def discounted_sums(values: Tensor, sample_index: Tensor, discount: float) -> Tensor:
    """[N] y_t = x_t + discount·y_{t+1} within each sample.

    Samples stand side by side, so that there are as many vector operations as the longest has tokens.
    """
    if len(values) == 0:
        return values.clone()
    _, column, lengths = torch.unique_consecutive(sample_index, return_inverse=True, return_counts=True)
    starts = lengths.cumsum(0) - lengths
    row = torch.arange(len(values), device=values.device) - starts[column]
    sums = values.new_zeros(int(lengths.max()), len(lengths))
    sums[row, column] = values
    rows = sums.unbind()
    for here, after in zip(reversed(rows[:-1]), reversed(rows), strict=False):
        here.add_(after, alpha=discount)
    return sums[row, column]


def terminal_rewards(rewards: Tensor, loss_mask: Tensor, sample_index: Tensor) -> Tensor:
    """[N] the reward [S] of each sample on its last unmasked token, 0 elsewhere.

    A fully masked sample gets none, where slime's reinforce++ stops and its ppo rewards a token that is not trained.
    """
    placed = torch.zeros(sample_index.shape, dtype=torch.float32, device=sample_index.device)
    unmasked = loss_mask.bool().nonzero().flatten()
    if len(unmasked) == 0:
        return placed
    owner = sample_index[unmasked]
    is_last = torch.ones_like(owner, dtype=torch.bool)
    is_last[:-1] = owner[:-1] != owner[1:]
    return placed.index_put((unmasked[is_last],), rewards.float()[owner[is_last]])


def reinforce_plus_plus_returns(
    rewards: Tensor, penalty: Tensor, loss_mask: Tensor, sample_index: Tensor, *, gamma: float
) -> Tensor:
    """[N] discounted sums of -penalty·mask, with the sample's reward on its last unmasked token (arXiv 2501.03262)."""
    token_rewards = terminal_rewards(rewards, loss_mask, sample_index) - penalty * loss_mask
    return discounted_sums(token_rewards, sample_index, gamma)


def generalized_advantages(
    token_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    sample_index: Tensor,
    *,
    gamma: float,
    lambd: float,
) -> Advantages:
    """GAE over token rewards [N] and values [N] (arXiv 1506.02438); V is 0 beyond the last token.

    The recursion steps from one unmasked token to the next, as if tool output were not there (slime bootstraps from
    values at tokens the model did not write). Masked tokens get 0.
    """
    unmasked = loss_mask.bool().nonzero().flatten()
    owner, value = sample_index[unmasked], values[unmasked]
    next_value = torch.zeros_like(value)
    next_value[:-1] = value[1:] * (owner[:-1] == owner[1:])
    delta = token_rewards[unmasked] + gamma * next_value - value
    advantage = discounted_sums(delta, owner, gamma * lambd)
    blank = torch.zeros_like(values)
    return Advantages(
        advantages=blank.index_put((unmasked,), advantage),
        returns=blank.index_put((unmasked,), advantage + value),
    )


def subtract_teacher_kl(
    advantages: Tensor, log_probs: Tensor, teacher_log_probs: Tensor, *, opd_kl_coef: float
) -> tuple[Tensor, Tensor]:
    """On-policy distillation: ([N] advantages less coef·(student - teacher), [N] that difference, `opd_reverse_kl`)."""
    reverse_kl = log_probs - teacher_log_probs
    return advantages - opd_kl_coef * reverse_kl, reverse_kl


def whiten(values: Tensor, loss_mask: Tensor, *, all_reduce: AllReduce | None = None) -> Tensor:
    """[N] `values` with mean 0 and variance 1 over the unmasked tokens of all ranks; masked ones are shifted along.

    Bessel corrected from two tokens on. Sums are float64: in float32 a mean far from 0 eats the variance.
    """
    mask = loss_mask.bool()
    kept = torch.where(mask, values.double(), 0.0)
    moments = torch.stack([mask.sum().double(), kept.sum(), kept.square().sum()])
    if all_reduce is not None:
        moments = all_reduce(moments)
    count, mean = moments[0], moments[1] / moments[0].clamp(min=1)
    if count == 0:
        raise DataError(
            "no token of this iteration is unmasked, so advantages cannot be normalised",
            hint="look at `loss_mask` and `remove_sample` of its samples, or drop `--normalize-advantages`",
        )
    variance = (moments[2] / count - mean.square()).clamp(min=0) * count / (count - 1).clamp(min=1)
    return ((values - mean) * torch.rsqrt(variance + WHITENING_EPSILON)).to(values.dtype)
