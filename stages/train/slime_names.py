"""What losses, advantages and corrections of the user's call of slime's, by slime's names and arguments.

Lists have an entry for each sample. `slime_losses` has what looks at logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from slime_stages.errors import UsageError
from stages.train.algorithm import advantages as estimators
from stages.train.algorithm.kl import KlKind, approx_kl
from stages.train.algorithm.losses import ClipRange, cispo_loss, clipped_loss
from stages.train.algorithm.mismatch import MismatchOptions, Mode, correct_mismatch
from stages.train.algorithm.ratios import sample_means

Values = TypeVar("Values", Tensor, list[float])
Correction = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def compute_approx_kl(
    log_probs: Tensor, log_probs_base: Tensor, kl_loss_type: KlKind, importance_ratio: Tensor | None = None
) -> Tensor:
    return approx_kl(log_probs, log_probs_base, kl_loss_type, importance_ratio)


def compute_policy_loss(
    ppo_kl: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The clipped loss of each token, and 1 where clipping changed it."""
    clip = ClipRange(eps_clip=eps_clip, eps_clip_high=eps_clip_high, eps_clip_c=eps_clip_c)
    found = clipped_loss(ppo_kl, advantages, clip=clip)
    return found.pg_loss, found.pg_clipfrac


def compute_cispo_loss(
    ppo_kl: Tensor, log_probs: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same of cispo, whose ratio is a constant weight."""
    found = cispo_loss(ppo_kl, log_probs, advantages, clip=ClipRange(eps_clip=eps_clip, eps_clip_high=eps_clip_high))
    return found.pg_loss, found.pg_clipfrac


def compute_gspo_kl(
    full_log_probs: Sequence[Tensor],
    full_old_log_probs: Sequence[Tensor],
    local_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
) -> Tensor:
    """[N] at each token the mean of old - new log-prob over its sample's trained tokens."""
    gap = torch.cat(list(full_old_log_probs)) - torch.cat(list(full_log_probs))
    owner = _owners(local_log_probs)
    return sample_means(gap, torch.cat(list(loss_masks)), owner, sample_count=len(local_log_probs))[owner]


def get_grpo_returns(rewards: Tensor, kl: Sequence[Tensor]) -> list[Tensor]:
    """Each sample's reward at all of its tokens."""
    return [torch.full_like(each, float(reward)) for each, reward in zip(kl, rewards, strict=True)]


def get_reinforce_plus_plus_returns(
    rewards: Tensor,
    kl: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    response_lengths: Sequence[int],
    total_lengths: Sequence[int],
    kl_coef: float,
    gamma: float,
) -> list[Tensor]:
    """Discounted sums of the reward and of what the KL costs; a sample without a trained token has no reward."""
    penalty, mask = kl_coef * torch.cat(list(kl)), torch.cat(list(loss_masks)).float()
    found = estimators.reinforce_plus_plus_returns(rewards, penalty, mask, _owners(kl), gamma=gamma)
    return list(torch.split(found, list(response_lengths)))


def get_reinforce_plus_plus_baseline_advantages(
    rewards: Tensor, kl: Sequence[Tensor], kl_coef: float, loss_masks: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Each sample's centred reward, less what the KL costs."""
    return [reward - kl_coef * each for each, reward in zip(kl, rewards, strict=True)]


def get_advantages_and_returns(
    total_len: int, response_len: int, values: Tensor, rewards: Tensor, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation of one sample, whose tokens all count."""
    advantages, returns = get_advantages_and_returns_batch(
        [total_len], [response_len], [values], [rewards], gamma, lambd
    )
    return advantages[0], returns[0]


@torch.no_grad()
def get_advantages_and_returns_batch(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    values_list: Sequence[Tensor],
    rewards_list: Sequence[Tensor],
    gamma: float,
    lambd: float,
    chunked: bool = True,
) -> tuple[list[Tensor], list[Tensor]]:
    values, rewards = torch.cat(list(values_list)), torch.cat(list(rewards_list))
    found = estimators.generalized_advantages(
        rewards, values, torch.ones_like(values), _owners(values_list), gamma=gamma, lambd=lambd
    )
    lengths = list(response_lengths)
    return list(torch.split(found.advantages, lengths)), list(torch.split(found.returns, lengths))


def vanilla_tis_function(args: Any, **given: Any) -> Correction:
    """As `custom_tis_function_path`: the weights p(trainer) / p(engine), held between `tis_clip_low` and `tis_clip`."""
    return _weighted(args, "clip", **given)


def icepop_function(args: Any, **given: Any) -> Correction:
    """Likewise; a weight beyond the bounds is 0."""
    return _weighted(args, "icepop", **given)


def _weighted(
    args: Any,
    mode: Mode,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: list[Tensor],
    **_: Any,
) -> Correction:
    found = correct_mismatch(
        torch.cat(list(train_log_probs)),
        torch.cat(list(rollout_log_probs)),
        torch.cat(loss_masks),
        _owners(loss_masks),
        len(loss_masks),
        options=MismatchOptions(mode=mode, low=args.tis_clip_low, high=args.tis_clip),
    )
    return pg_loss * found.weights, loss_masks, found.metrics


def get_sum_of_sample_mean(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    rollout_mask_sums: Tensor | Sequence[Any] | None = None,
    calculate_per_token_loss: bool = False,
) -> Callable[[Tensor], Tensor]:
    """From values [N] to the sum over samples of their means over trained tokens, or to their sum over those.

    `rollout_mask_sums` are the trained tokens of the rollout that a sample is part of; without, its own.
    """
    mask, owner = torch.cat(list(loss_masks)).float(), _owners(loss_masks)
    if calculate_per_token_loss:
        return lambda values: (values * mask).sum()
    own = [float(each.sum()) for each in loss_masks]
    counts = own if rollout_mask_sums is None else [float(each) for each in rollout_mask_sums]
    weights = mask / torch.tensor(counts, device=mask.device).clamp(min=1)[owner]
    return lambda values: (values * weights).sum()


def all_gather_with_cp(tensor: Tensor, total_length: int, response_length: int) -> Tensor:
    """A sample's values as they are: functions get whole responses."""
    return _whole(tensor, response_length)


def slice_log_prob_with_cp(log_prob: Values, total_length: int, response_length: int, *_: Any, **__: Any) -> Values:
    """This rank's part of a response, which is all of it."""
    return _whole(log_prob, response_length)


def _owners(rows: Sequence[Tensor]) -> Tensor:
    """[N] which sample each token belongs to."""
    device = rows[0].device if rows else None
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return torch.arange(len(rows), device=device).repeat_interleave(lengths)


def _whole(values: Values, response_length: int) -> Values:
    if len(values) != response_length:
        raise UsageError(
            f"{len(values)} values are not a response of {response_length} tokens",
            hint="context_parallel_size = 1 for functions that gather responses themselves",
        )
    return values
