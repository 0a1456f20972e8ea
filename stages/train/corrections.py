"""What is done about the gap between engine and trainer: as configured, or by the user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from slime_stages.config.sections.algorithm import Algorithm
from slime_stages.errors import DataError
from stages.train.algorithm.mismatch import (
    MismatchCorrection,
    MismatchOptions,
    correct_mismatch,
    mismatch_metrics,
    weight_moments,
)
from stages.train.micro_batch import TokenView


def is_on(algorithm: Algorithm) -> bool:
    return algorithm.use_tis or algorithm.get_mismatch_metrics


def options_of(algorithm: Algorithm) -> MismatchOptions:
    low, high = algorithm.tis_clip_low, algorithm.tis_clip
    return MismatchOptions(
        level=algorithm.tis_level,
        mode=algorithm.tis_mode,
        low=low,
        high=high,
        rejection=algorithm.rs_level if algorithm.use_rs else None,
        rejection_low=low if algorithm.rs_lower_bound is None else algorithm.rs_lower_bound,
        rejection_high=high if algorithm.rs_upper_bound is None else algorithm.rs_upper_bound,
        veto_threshold=algorithm.rs_veto_threshold,
    )


def corrected(
    algorithm: Algorithm, view: TokenView, train_log_probs: Tensor, *, mean_weight: float | None
) -> MismatchCorrection:
    """The configured correction of a micro-batch; without `use_tis` only its metrics.

    `mean_weight` is that of the whole optimizer step, which the weights are divided by.
    """
    rollout, mask = view.columns["rollout_log_probs"], view.columns["mask"]
    found = correct_mismatch(
        train_log_probs, rollout, mask, view.sample_index, view.sample_count, options=options_of(algorithm)
    )
    metrics = dict(found.metrics)
    if algorithm.get_mismatch_metrics:
        metrics |= mismatch_metrics(train_log_probs, rollout)
    if not algorithm.use_tis:
        return MismatchCorrection(weights=torch.ones_like(found.weights), metrics=metrics)
    weights = found.weights
    if mean_weight is not None:
        weights = weights / mean_weight
        metrics["mis_batch_norm_factor"] = torch.full_like(weights, mean_weight)
    return MismatchCorrection(weights=weights, mask=found.mask, metrics=metrics)


def moments_of(algorithm: Algorithm, view: TokenView) -> Tensor:
    """[2] see `weight_moments`; the trainer's log-probs are those from before the first step."""
    rollout, mask = view.columns["rollout_log_probs"], view.columns["mask"]
    found = correct_mismatch(
        view.columns["log_probs"], rollout, mask, view.sample_index, view.sample_count, options=options_of(algorithm)
    )
    return weight_moments(found.weights, mask, view.sample_index, view.sample_count, algorithm.tis_level)


def custom_correction(
    function: Callable[..., Any], args: Any, view: TokenView, table: dict[str, Any], loss: Tensor, train: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The user's loss [N], loss mask [N], and metrics [N]."""
    result = function(
        args=args,
        pg_loss=loss,
        train_log_probs=view.split(train),
        rollout_log_probs=table["rollout_log_probs"],
        loss_masks=table["loss_masks"],
        total_lengths=table["total_lengths"],
        response_lengths=table["response_lengths"],
    )
    changed, masks, metrics = result
    mask = view.columns["mask"] if masks is None else flat(masks).to(loss.dtype)
    values = {name: flat(each).detach() for name, each in metrics.items()}
    for name, each in {"pg_loss": changed, "modified_masks": mask, **values}.items():
        if each.shape != loss.shape:
            raise DataError(
                f"custom_tis_function_path gave {name} of shape {tuple(each.shape)} for {len(loss)} tokens",
                hint="it returns (pg_loss, modified_masks, metrics), each with a number for every response token",
            )
    return changed, mask, values


def flat(values: Tensor | Sequence[Tensor]) -> Tensor:
    return values if isinstance(values, Tensor) else torch.cat(list(values))
