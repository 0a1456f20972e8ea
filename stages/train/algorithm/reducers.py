"""From losses per token to the loss of a step, by weights that do not know how the step was split (spec §E.7).

Each token's weight depends on its rollout and on the step alone. So sums over micro-batches, data parallel and context
parallel ranks may be taken in any grouping, provided they are sums: where Megatron averages over micro-batches and
ranks, multiply by their number first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_weights(
    loss_mask: Tensor,
    sample_index: Tensor,
    rollout_mask_sums: Tensor,
    *,
    global_batch_size: int,
    calculate_per_token_loss: bool = False,
    step_token_count: int | None = None,
) -> Tensor:
    """[N] float32 weights w for which the step's loss, or any reported metric, is Σ w·x.

    `loss_mask`, `sample_index` [N]; `rollout_mask_sums` [S] of the samples that `sample_index` counts.

    By default m / max(rollout_mask_sums, 1) / global_batch_size: siblings of one rollout form one mean over their
    tokens, each rollout of the step weighs the same, and a fully masked one counts as 0. With
    `calculate_per_token_loss` it is m / step_token_count (see `count_step_tokens`).

    A correction that rejects tokens passes its own `loss_mask` here and leaves the sums as they were, so that
    rejected tokens still count in the denominators.
    """
    mask = loss_mask.float()
    if calculate_per_token_loss:
        assert step_token_count is not None, "a mean over tokens needs the step's token count"
        return mask / step_token_count
    return mask / rollout_mask_sums.float().clamp(min=1)[sample_index] / global_batch_size


def count_step_tokens(sample_mask_sums: Tensor) -> int:
    """Σ max(Σ m, 1) over the samples [S] of a step: a fully masked sample counts as one token, as in slime."""
    return int(sample_mask_sums.clamp(min=1).sum())


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Σ weights·values over N tokens as a scalar; what a token of weight 0 holds, even NaN, does not matter."""
    return torch.where(weights == 0, 0.0, values.float() * weights).sum()
