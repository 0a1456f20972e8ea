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
from slime_stages.errors import DataError
from stages.train import corrections
from stages.train.algorithm.conversion import TrainBatch
from stages.train.algorithm.kl import approx_kl
from stages.train.algorithm.losses import ClipRange, PolicyLoss, off_policy_kept, policy_loss
from stages.train.algorithm.mismatch import log_prob_abs_diff
from stages.train.algorithm.ratios import exp_log_ratio, sample_sums
from stages.train.algorithm.reducers import weighted_sum
from stages.train.hooks import Hooks
from stages.train.megatron.packing import PackedMicroBatch
from stages.train.micro_batch import TokenColumns, TokenView, sample_table, token_table

PER_SAMPLE = ("log_prob_gap", "entropy", "clip_share")
Losses = tuple[Tensor, Mapping[str, Tensor]]


@dataclass(slots=True)
class SampleStatistics:
    """[S] sums over trained tokens, filled in as micro-batches pass; divide by the trained tokens for means."""

    sums: dict[str, NDArray[np.float64]]

    @classmethod
    def empty(cls, sample_count: int) -> SampleStatistics:
        return cls({name: np.zeros(sample_count) for name in PER_SAMPLE})


@dataclass(slots=True, kw_only=True)
class Objective:
    """A `LossFunction` for one optimizer step: its sums over all micro-batches are the step's loss and metrics."""

    config: Config
    hooks: Hooks = field(repr=False)
    batch: TrainBatch = field(repr=False)
    columns: TokenColumns = field(repr=False)
    statistics: SampleStatistics = field(repr=False)
    denominator: float
    """What slime divides its sums by: the step's rollouts, or with calculate_per_token_loss its tokens."""
    mean_weight: float | None = None
    """Of the step's corrections for the gap between engine and trainer, with tis_batch_normalize."""

    def __call__(self, micro_batch: PackedMicroBatch, scores: Tensor, entropies: Tensor | None) -> Losses:
        """The weighted sum of the token losses [N] as a scalar, and metrics weighted alike."""
        view = TokenView.of(micro_batch, scores.device)
        if self.config.algorithm.loss_type == "custom_loss":
            return self._custom(view, scores)
        if self.config.algorithm.loss_type == "sft_loss":
            return weighted_sum(-scores, view.columns["weight"]), {}
        return self._policy(view, scores, entropies)

    def _policy(self, view: TokenView, log_probs: Tensor, entropies: Tensor | None) -> Losses:
        algorithm, columns = self.config.algorithm, view.columns
        rollout, current = columns.get("rollout_log_probs"), log_probs.detach()
        train = columns.get("log_probs", current)
        old = columns["rollout_log_probs"] if algorithm.use_rollout_logprobs else train
        loss = self._policy_loss(view, log_probs, old)
        token_loss, gap = loss.pg_loss, {}
        if rollout is not None:
            gap["train_rollout_logprob_abs_diff"] = log_prob_abs_diff(
                current if algorithm.use_rollout_logprobs else train, rollout
            )
            gap["probs_diff"] = (current.exp() - rollout.exp()).abs()
        metrics = {"ppo_kl": loss.ppo_kl, "pg_clipfrac": loss.pg_clipfrac}
        if algorithm.use_opsm:
            kept = self._kept(view, log_probs, old)
            token_loss, metrics["opsm_clipfrac"] = token_loss * kept, 1 - kept
        mask = columns["mask"]
        if corrections.is_on(algorithm):
            gap["ois"] = exp_log_ratio(-loss.ppo_kl)
            token_loss, mask, found = self._correct(view, token_loss, train)
            gap |= found
        weights = columns["weight"] * mask
        total = self._reduce(view, token_loss, mask, weights)
        sums = {name: weighted_sum(values, columns["weight"]) for name, values in gap.items()}
        sums |= {"pg_loss": total.detach()} | {n: weighted_sum(values, weights) for n, values in metrics.items()}
        if entropies is not None:
            sums["entropy_loss"] = weighted_sum(entropies.detach(), weights)
            if algorithm.entropy_coef:
                total = total - algorithm.entropy_coef * weighted_sum(entropies, weights)
        if algorithm.use_kl_loss:
            kl = weighted_sum(self._kl(view, log_probs, old), weights)
            sums["kl_loss"] = kl.detach()
            total = total + algorithm.kl_loss_coef * kl
        self._note(view, gap.get("train_rollout_logprob_abs_diff"), entropies, loss.pg_clipfrac)
        return total, sums

    def _policy_loss(self, view: TokenView, log_probs: Tensor, old: Tensor) -> PolicyLoss:
        algorithm = self.config.algorithm
        return policy_loss(
            algorithm.advantage_estimator,
            log_probs,
            old,
            view.columns["advantages"],
            clip=ClipRange(
                eps_clip=algorithm.eps_clip, eps_clip_high=algorithm.eps_clip_high, eps_clip_c=algorithm.eps_clip_c
            ),
            loss_mask=view.columns["mask"],
            sample_index=view.sample_index,
            sample_count=view.sample_count,
        )

    def _kept(self, view: TokenView, log_probs: Tensor, old: Tensor) -> Tensor:
        return off_policy_kept(
            log_probs,
            old,
            view.columns["advantages"],
            loss_mask=view.columns["mask"],
            sample_index=view.sample_index,
            sample_count=view.sample_count,
            opsm_delta=self.config.algorithm.opsm_delta,
        )

    def _kl(self, view: TokenView, log_probs: Tensor, old: Tensor) -> Tensor:
        algorithm = self.config.algorithm
        ratio = exp_log_ratio(log_probs - old) if algorithm.use_unbiased_kl else None
        return approx_kl(log_probs, view.columns["ref_log_probs"], algorithm.kl_loss_type, ratio)

    def _correct(
        self, view: TokenView, token_loss: Tensor, train: Tensor
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """The token losses [N], the mask [N] of what still counts, and metrics [N]."""
        if (function := self.hooks.find("custom_tis_function_path")) is not None:
            return corrections.custom_correction(
                function, self.hooks.args, view, self._table(view, train.device), token_loss, train
            )
        found = corrections.corrected(self.config.algorithm, view, train, mean_weight=self.mean_weight)
        mask = view.columns["mask"] if found.mask is None else found.mask
        return token_loss * found.weights, mask, found.metrics

    def _reduce(self, view: TokenView, token_loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        """The policy loss as a scalar."""
        if (function := self.hooks.find("custom_pg_loss_reducer_function_path")) is None:
            return weighted_sum(token_loss, weights)
        totals = self.batch.total_lengths[view.positions].tolist()
        per_token = self.config.algorithm.calculate_per_token_loss
        reduced = function(totals, view.lengths, view.split(mask), per_token)(token_loss)
        return _scalar("custom_pg_loss_reducer_function_path", reduced) / self.denominator

    def _custom(self, view: TokenView, logits: Tensor) -> Losses:
        """slime's scale: its losses are sums that are divided by the step's rollouts, or tokens, afterwards."""
        function = self.hooks.find("custom_loss_function_path")
        assert function is not None
        weights = view.columns["weight"] * self.denominator
        batch = self._table(view, logits.device)
        loss, metrics = function(self.hooks.args, batch, logits, lambda values: weighted_sum(values, weights))
        values = {name: _scalar(name, value).detach() / self.denominator for name, value in metrics.items()}
        return _scalar("custom_loss_function_path", loss) / self.denominator, values

    def _table(self, view: TokenView, device: torch.device) -> dict[str, Any]:
        """The micro-batch sample by sample, under slime's names."""
        known = {name: rows for name, rows in self.columns.items() if name != "loss_masks"}
        table = sample_table(self.batch, view.positions, device) | token_table(known, view.positions, device)
        if self.config.algorithm.computes_advantages:
            table.setdefault("advantages", view.split(view.columns["advantages"]))
            table.setdefault("returns", table["advantages"])
        return table

    def _note(self, view: TokenView, gap: Tensor | None, entropies: Tensor | None, clipped: Tensor) -> None:
        if not view.positions:
            return
        entropy = None if entropies is None else entropies.detach()
        for name, per_token in {"log_prob_gap": gap, "entropy": entropy, "clip_share": clipped}.items():
            if per_token is not None:
                values = per_token.double() * view.columns["mask"]
                sums = sample_sums(values, view.sample_index, view.sample_count)
                self.statistics.sums[name][view.positions] = sums.cpu().numpy()


def _scalar(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise DataError(f"{what} gave {type(value).__name__} {value!r:.80}, not a tensor with one number")
    return value.reshape(())
