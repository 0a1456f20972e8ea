"""What loss and correction functions of the user's call of slime's, by slime's names and arguments."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

from slime_stages.errors import UsageError
from stages.train.algorithm.kl import KlKind, approx_kl
from stages.train.algorithm.losses import ClipRange, clipped_loss

Values = TypeVar("Values", Tensor, list[float])


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


def all_gather_with_cp(tensor: Tensor, total_length: int, response_length: int) -> Tensor:
    """A sample's values as they are: functions get whole responses."""
    return _whole(tensor, response_length)


def slice_log_prob_with_cp(log_prob: Values, total_length: int, response_length: int, *_: Any, **__: Any) -> Values:
    """This rank's part of a response, which is all of it."""
    return _whole(log_prob, response_length)


def _whole(values: Values, response_length: int) -> Values:
    if len(values) != response_length:
        raise UsageError(
            f"{len(values)} values are not a response of {response_length} tokens",
            hint="context_parallel_size = 1 for functions that gather responses themselves",
        )
    return values
