"""Importance ratios that cannot overflow, and means over the tokens of each sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Beyond e^±20 a ratio says "another policy"; unbounded it becomes inf, and inf times a zero weight is NaN."""

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over the ranks that hold parts of it. Differentiable where gradients have to pass."""


def exp_log_ratio(log_ratio: Tensor) -> Tensor:
    """[N] exp(log_ratio), with the logarithm held within ±LOG_RATIO_LIMIT. Gradient 0 beyond."""
    return torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def sample_sums(values: Tensor, sample_index: Tensor, sample_count: int) -> Tensor:
    """[S] the sum of `values` [N] over the tokens of each sample."""
    return values.new_zeros(sample_count).index_add(0, sample_index, values)


def sample_means(
    values: Tensor,
    loss_mask: Tensor,
    sample_index: Tensor,
    *,
    sample_count: int,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """[S] Σ m·v / max(Σ m, 1) over the tokens of each sample (spec §E.4, gspo and opsm).

    Where context parallelism splits a sample over ranks, `all_reduce` sums numerators and counts over them.
    """
    mask = loss_mask.to(values.dtype)
    sums = sample_sums(torch.where(mask > 0, values, 0.0), sample_index, sample_count)
    counts = sample_sums(mask, sample_index, sample_count)
    if all_reduce is not None:
        sums, counts = all_reduce(sums), all_reduce(counts)
    return sums / counts.clamp(min=1)
