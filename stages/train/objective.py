"""The loss of a micro-batch, and what it says about each sample on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slime_stages.config import Config
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.losses import ClipRange, policy_loss
from stages.train.algorithm.mismatch import log_prob_abs_diff, truncated_importance_weights
from stages.train.algorithm.ratios import sample_sums
from stages.train.algorithm.reducers import weighted_sum
from stages.train.megatron.packing import PackedMicroBatch, PackedSample

PER_SAMPLE = ("log_prob_gap", "entropy", "clip_share")


@dataclass(slots=True)
class SampleStatistics:
    """[S] sums over trained tokens, filled in as micro-batches pass; divide by the trained tokens for means."""

    sums: dict[str, NDArray[np.float64]]

    @classmethod
    def empty(cls, sample_count: int) -> SampleStatistics:
        return cls({name: np.zeros(sample_count) for name in PER_SAMPLE})


@dataclass(slots=True, kw_only=True)
class Objective:
    """A `LossFunction`: its sums over all micro-batches of a step are the step's loss and metrics."""

    config: Config
    statistics: SampleStatistics = field(repr=False)

    def __call__(
        self, micro_batch: PackedMicroBatch, log_probs: Tensor, entropies: Tensor | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The weighted sum of the token losses [N] as a scalar, and metrics weighted alike."""
        algorithm = self.config.algorithm
        columns = {name: torch.from_numpy(values).to(log_probs.device) for name, values in micro_batch.columns.items()}
        sample_index = torch.from_numpy(micro_batch.sample_index).to(log_probs.device)
        weights, mask = columns["weight"], columns["mask"]
        rollout = columns.get("rollout_log_probs")
        old = columns.get("old_log_probs", log_probs.detach())
        loss = policy_loss(
            algorithm.advantage_estimator,
            log_probs,
            old,
            columns["advantage"],
            clip=ClipRange(
                eps_clip=algorithm.eps_clip, eps_clip_high=algorithm.eps_clip_high, eps_clip_c=algorithm.eps_clip_c
            ),
            loss_mask=mask,
            sample_index=sample_index,
            sample_count=int(sample_index[-1]) + 1 if len(sample_index) else 0,
        )
        token_loss, metrics = loss.pg_loss, {"ppo_kl": loss.ppo_kl, "pg_clipfrac": loss.pg_clipfrac}
        if rollout is not None:
            metrics["train_rollout_logprob_abs_diff"] = log_prob_abs_diff(log_probs.detach(), rollout)
            metrics["probs_diff"] = (log_probs.detach().exp() - rollout.exp()).abs()
        if algorithm.use_tis:
            assert rollout is not None
            correction = truncated_importance_weights(
                old, rollout, tis_clip=algorithm.tis_clip, tis_clip_low=algorithm.tis_clip_low
            )
            token_loss = token_loss * correction.weights
            metrics |= correction.metrics
        total = weighted_sum(token_loss, weights)
        sums = {"pg_loss": total.detach()} | {name: weighted_sum(values, weights) for name, values in metrics.items()}
        if entropies is not None:
            sums["entropy_loss"] = weighted_sum(entropies.detach(), weights)
            if algorithm.entropy_coef:
                total = total - algorithm.entropy_coef * weighted_sum(entropies, weights)
        self._note(micro_batch, metrics, entropies, mask, sample_index, columns["position"])
        return total, sums

    def _note(
        self,
        micro_batch: PackedMicroBatch,
        metrics: Mapping[str, Tensor],
        entropies: Tensor | None,
        mask: Tensor,
        sample_index: Tensor,
        position: Tensor,
    ) -> None:
        if not len(sample_index):
            return
        count = int(sample_index[-1]) + 1
        firsts = torch.searchsorted(sample_index, torch.arange(count, device=sample_index.device))
        seen = torch.from_numpy(np.unique(micro_batch.sample_index)).to(sample_index.device)
        positions = position[firsts[seen]].cpu().numpy()
        values: dict[str, Any] = {
            "log_prob_gap": metrics.get("train_rollout_logprob_abs_diff"),
            "entropy": None if entropies is None else entropies.detach(),
            "clip_share": metrics["pg_clipfrac"],
        }
        for name, per_token in values.items():
            if per_token is not None:
                sums = sample_sums(per_token.double() * mask, sample_index, count)
                self.statistics.sums[name][positions] = sums[seen].cpu().numpy()


def packed_sample(
    batch: TrainBatch,
    position: int,
    weights: NDArray[np.float32],
    old_log_probs: NDArray[np.float32] | None,
) -> PackedSample:
    """One sample with the columns that `Objective` reads. `weights` [R] contain every denominator of the loss."""
    length = int(batch.response_lengths[position])
    columns: dict[str, NDArray[Any]] = {
        "position": np.full(length, position, np.int64),
        "advantage": np.full(length, batch.rewards[position], np.float32),
        "mask": batch.loss_masks[position].astype(np.float32),
        "weight": weights,
    }
    if batch.rollout_log_probs is not None:
        columns["rollout_log_probs"] = np.asarray(batch.rollout_log_probs[position], np.float32)
    if old_log_probs is not None:
        columns["old_log_probs"] = old_log_probs
    return PackedSample(
        tokens=np.asarray(batch.tokens[position], np.int64),
        response_length=length,
        share_key=int(batch.group_indices[position]),
        columns=columns,
    )
