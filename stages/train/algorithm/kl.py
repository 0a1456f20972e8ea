"""Estimators of the KL divergence from samples (spec §E.2; Schulman, "Approximating KL Divergence", 2020)."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from slime_stages.errors import UsageError
from stages.train.algorithm.ratios import exp_log_ratio

KlKind = Literal["k1", "k2", "k3", "low_var_kl"]
LOW_VAR_KL_LIMIT = 10.0


def approx_kl(
    log_probs: Tensor,
    base_log_probs: Tensor,
    kind: KlKind,
    importance_ratio: Tensor | None = None,
) -> Tensor:
    """[N] KL(policy ‖ base) per token, from log-probs [N] of tokens that the policy drew.

    With Δ = log_probs - base_log_probs: k1 Δ, k2 Δ²/2, k3 and low_var_kl exp(-Δ) - 1 + Δ. `importance_ratio` [N]
    multiplies first; only low_var_kl is then clamped to ±10. k1 is unbiased but has no useful gradient as a loss.
    """
    delta = log_probs - base_log_probs
    if kind == "k1":
        kl = delta
    elif kind == "k2":
        kl = delta.square() / 2
    elif kind in ("k3", "low_var_kl"):
        kl = exp_log_ratio(-delta) - 1 + delta
    else:
        raise UsageError(f"unknown `kl_loss_type` {kind!r}", hint=f"one of {', '.join(get_args(KlKind))}")
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return kl.clamp(-LOW_VAR_KL_LIMIT, LOW_VAR_KL_LIMIT) if kind == "low_var_kl" else kl
