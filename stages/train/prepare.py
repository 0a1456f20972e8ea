"""What the loss needs beside each token, computed once, before the first optimizer step (spec §E.1, E.3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slime_stages.config import Config
from slime_stages.errors import DataError
from stages.train.algorithm.advantages import compute_advantages, subtract_teacher_kl, whiten
from stages.train.algorithm.conversion import LOG_PROBS, Rows, TrainBatch
from stages.train.algorithm.kl import approx_kl
from stages.train.collectives import merged_over_ranks, sum_over_ranks
from stages.train.critic import values_of
from stages.train.hooks import Hooks
from stages.train.megatron.packing import PackedLater
from stages.train.megatron.step import Trainer
from stages.train.micro_batch import TokenColumns, packed_sample, sample_table, token_table
from stages.train.replay import EXPERTS

REFERENCE, TEACHER, OLD_ACTOR = "ref", "teacher", "old_actor"
"""Names of the copies of weights that a trainer may hold beside the policy."""
CPU = torch.device("cpu")


@dataclass(slots=True, kw_only=True)
class Preparation:
    """This rank's samples, and how their columns come about."""

    trainer: Trainer = field(repr=False)
    critic: Trainer | None = field(repr=False, default=None)
    batch: TrainBatch = field(repr=False)
    config: Config = field(repr=False)
    hooks: Hooks = field(repr=False)
    micro_batches: list[list[int]]
    """Positions of each of this rank's micro-batches, of all steps."""
    step_count: int
    iteration: int

    def columns(self) -> TokenColumns:
        """All ranks call it. Without advantages, each is the reward of its sample."""
        algorithm, copies = self.config.algorithm, self.trainer.copies
        if algorithm.use_rollout_logprobs and self.batch.rollout_log_probs is None:
            raise DataError("use_rollout_logprobs asks for the engine's log-probs, and no sample has any")
        found: TokenColumns = {}
        if self.batch.routed_experts is not None:
            found[EXPERTS] = self._engine_experts(self.batch.routed_experts)
        if algorithm.computes_advantages:
            if REFERENCE in copies:
                found["ref_log_probs"] = self._log_probs(REFERENCE, prefix="ref_")
            if TEACHER in copies:
                found["teacher_log_probs"] = self._log_probs(TEACHER, prefix="teacher_")
            if self._needs_old_log_probs():
                found |= self._old_log_probs(OLD_ACTOR if OLD_ACTOR in copies else None, found)
            if self.critic is not None:
                found["values"] = values_of(self.critic, self.batch, self.micro_batches)
            if algorithm.has_token_advantages or algorithm.kl_coef != 0:
                found |= self._advantages(found)
        if (function := self.hooks.find("rollout_data_postprocess_path")) is not None:
            data = self._table(found)
            function(self.hooks.args, self.iteration, data)
            found = self._read_back(data, found)
        return found

    @property
    def positions(self) -> list[int]:
        """Samples of this rank that have a response, in the order in which it works through them."""
        return [p for positions in self.micro_batches for p in positions if self.batch.response_lengths[p]]

    def _needs_old_log_probs(self) -> bool:
        """With one step only, the old policy's log-probs are the new one's, detached: the ratio is 1."""
        algorithm = self.config.algorithm
        if self._records_experts:
            return True
        if algorithm.use_rollout_logprobs:
            return algorithm.get_mismatch_metrics
        return (
            self.step_count > 1
            or OLD_ACTOR in self.trainer.copies
            or algorithm.advantage_estimator in ("gspo", "ppo")
            or algorithm.loss_type != "policy_loss"
            or algorithm.kl_coef != 0
            or algorithm.use_opd
            or algorithm.get_mismatch_metrics
            or (algorithm.use_tis and algorithm.tis_batch_normalize)
            or algorithm.custom_advantage_function_path is not None
            or algorithm.rollout_data_postprocess_path is not None
        )

    def _log_probs(self, weights: str | None, prefix: str = "") -> dict[int, NDArray[np.float32]]:
        """[R] by position, from a copy of weights, or from those in training."""
        found: dict[int, NDArray[np.float32]] = {}
        with self.trainer.copies.in_place(weights) if weights else nullcontext():
            self.hooks.before_log_probs(self.trainer, prefix)
            chosen, packed = self._packed({})
            for positions, log_probs in zip(chosen, self.trainer.log_probs(packed), strict=True):
                found |= self._split(log_probs, positions)
        return found

    def _old_log_probs(self, weights: str | None, known: TokenColumns) -> TokenColumns:
        """Of the policy that losses compare with; its tokens go where `known` says, or where they go is noted."""
        found, experts = dict[int, NDArray[np.float32]](), dict[int, NDArray[np.float32]]()
        with self.trainer.copies.in_place(weights) if weights else nullcontext():
            self.hooks.before_log_probs(self.trainer, "")
            chosen, packed = self._packed({name: rows for name, rows in known.items() if name == EXPERTS})
            if not self._records_experts:
                scores = self.trainer.log_probs(packed)
            else:
                scores, routed = self.trainer.log_probs_and_experts(packed)
                for positions, rows in zip(chosen, routed, strict=True):
                    experts |= {p: row.astype(np.float32).ravel() for p, row in zip(positions, rows, strict=True)}
            for positions, log_probs in zip(chosen, scores, strict=True):
                found |= self._split(log_probs, positions)
        return {"log_probs": found} | ({EXPERTS: experts} if self._records_experts else {})

    def _packed(self, columns: TokenColumns) -> tuple[list[list[int]], PackedLater]:
        """This rank's micro-batches without samples that have no response, and the positions in them; no empty ones."""
        micro_batches = [[p for p in each if self.batch.response_lengths[p]] for each in self.micro_batches]
        chosen = [each for each in micro_batches if each]
        blank = {p: np.zeros(int(self.batch.response_lengths[p]), np.float32) for each in chosen for p in each}
        return chosen, PackedLater([[packed_sample(self.batch, p, blank[p], columns) for p in each] for each in chosen])

    @property
    def _records_experts(self) -> bool:
        return self.config.train.use_routing_replay and self.batch.routed_experts is None

    def _engine_experts(self, rows: Rows) -> dict[int, NDArray[np.float32]]:
        """Of this rank's samples, if they are of the model in training."""
        of_token = self.trainer.config.num_layers * (self.trainer.config.moe_router_topk or 0)
        for position in self.positions:
            given, count = len(rows[position]), len(self.batch.tokens[position]) - 1
            if given != of_token * count:
                raise DataError(
                    f"the engine gave {given} experts for the {count} tokens of sample "
                    f"{self.batch.sample_indices[position]}, each of which has {of_token} in the trainer",
                    hint="compare the engine's model with hf_checkpoint, or drop --use-rollout-routing-replay",
                )
        return {position: rows[position] for position in self.positions}

    def _advantages(self, known: TokenColumns) -> TokenColumns:
        algorithm, found = self.config.algorithm, TokenColumns()
        old = self._flat(self._old(known))
        mask = torch.from_numpy(_concatenated([self.batch.loss_masks[p] for p in self.positions])).float()
        kl = torch.zeros_like(old)
        if algorithm.kl_coef != 0:
            kl = approx_kl(old, self._flat(known["ref_log_probs"]), algorithm.kl_loss_type)
            found["kl"] = self._split(kl, self.positions)
        if not algorithm.has_token_advantages:
            return found
        advantages, returns = self._estimate(known | found, kl, mask)
        if algorithm.use_opd:
            teacher = self._flat(self._teacher(known))
            advantages, gap = subtract_teacher_kl(advantages, old, teacher, opd_kl_coef=algorithm.opd_kl_coef)
            found["opd_reverse_kl"] = self._split(gap, self.positions)
        if algorithm.normalize_advantages:
            advantages = whiten(advantages, mask, all_reduce=sum_over_ranks)
        found["advantages"] = self._split(advantages, self.positions)
        found["returns"] = self._split(returns, self.positions)
        return found

    def _estimate(self, known: TokenColumns, kl: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        algorithm = self.config.algorithm
        if (function := self.hooks.find("custom_advantage_function_path")) is not None:
            data = self._table(known | {"kl": self._split(kl, self.positions)})
            function(self.hooks.args, data)
            rows = [self._given(data, name, "custom_advantage_function_path") for name in ("advantages", "returns")]
            return self._flat(rows[0]), self._flat(rows[1])
        lengths = torch.from_numpy(self.batch.response_lengths[self.positions])
        estimated = compute_advantages(
            algorithm.advantage_estimator,
            torch.from_numpy(self.batch.rewards[self.positions]),
            mask,
            torch.arange(len(lengths)).repeat_interleave(lengths),
            kl=kl,
            values=self._flat(known["values"]) if "values" in known else None,
            kl_coef=algorithm.kl_coef,
            gamma=algorithm.gamma,
            lambd=algorithm.lambd,
        )
        return estimated.advantages, estimated.returns

    def _old(self, known: TokenColumns) -> dict[int, Any]:
        """Of the policy that advantages are about; zeros where none of them looks at it."""
        if self.config.algorithm.use_rollout_logprobs:
            assert self.batch.rollout_log_probs is not None
            return {p: self.batch.rollout_log_probs[p] for p in self.positions}
        blank = {p: np.zeros(int(self.batch.response_lengths[p]), np.float32) for p in self.positions}
        return known.get("log_probs", blank)

    def _teacher(self, known: TokenColumns) -> dict[int, Any]:
        if "teacher_log_probs" in known:
            return known["teacher_log_probs"]
        if self.batch.teacher_log_probs is None:
            raise DataError(
                "use_opd asks for a teacher's log-probs, and no sample has any",
                hint="--rollout-sample-hook-path slime_stages.compat.distillation.ask_teacher for a teacher in "
                "--sglang-config; fill sample.teacher_log_probs yourself; or --opd-type megatron",
            )
        return {p: self.batch.teacher_log_probs[p] for p in self.positions}

    def _table(self, columns: TokenColumns) -> dict[str, Any]:
        """slime's `rollout_data` of this rank."""
        table = sample_table(self.batch, self.positions, CPU) | token_table(columns, self.positions, CPU)
        if self.config.algorithm.computes_advantages and "advantages" not in table:
            constant = [torch.full((len(m),), r) for m, r in zip(table["loss_masks"], table["rewards"], strict=True)]
            table |= {"advantages": constant, "returns": list(constant)}
        return table

    def _read_back(self, data: dict[str, Any], columns: TokenColumns) -> TokenColumns:
        """What a function may have changed in place."""
        names = [name for name in columns if name != EXPERTS]
        names += ["loss_masks", *(name for name in ("advantages", "returns") if name in data)]
        return columns | {name: self._given(data, name, "rollout_data_postprocess_path") for name in names}

    def _given(self, data: dict[str, Any], name: str, setting: str) -> dict[int, NDArray[np.float32]]:
        rows, lengths = data.get(name), self.batch.response_lengths[self.positions].tolist()
        if rows is None or [len(row) for row in rows] != lengths:
            raise DataError(
                f"{setting} left no {name} of the right lengths: one row for each of {len(lengths)} samples, "
                "one number for each response token",
                hint=f"set rollout_data[{name!r}] to a list of tensors",
            )
        arrays = [np.asarray(torch.as_tensor(row).detach().float().cpu().numpy()) for row in rows]
        return dict(zip(self.positions, arrays, strict=True))

    def _flat(self, rows: dict[int, Any]) -> Tensor:
        return torch.from_numpy(_concatenated([np.asarray(rows[p], np.float32) for p in self.positions])).float()

    def _split(self, values: Tensor, positions: Sequence[int]) -> dict[int, NDArray[np.float32]]:
        ends = np.cumsum(self.batch.response_lengths[list(positions)])[:-1]
        rows = np.split(values.detach().float().cpu().numpy(), ends) if len(positions) else []
        return dict(zip(positions, rows, strict=True))


def with_masks(batch: TrainBatch, columns: TokenColumns) -> TrainBatch:
    """The batch with the loss masks that a function has changed. Denominators stay those of the samples as they came.

    All ranks call it.
    """
    if "loss_masks" not in columns:
        return batch
    changed = {position: mask.astype(np.uint8) for position, mask in columns["loss_masks"].items()}
    sums = batch.loss_mask_sums.copy()
    for position, count in merged_over_ranks({p: int(mask.sum()) for p, mask in changed.items()}).items():
        sums[position] = count
    return replace(batch, loss_masks={**batch.loss_masks, **changed}, loss_mask_sums=sums)


def column_means(batch: TrainBatch, columns: TokenColumns, micro_batches: list[list[int]]) -> dict[str, float]:
    """Of each column, as slime reports it: the mean over rollouts of the mean over their trained tokens.

    All ranks call it, with the micro-batches of their own.
    """
    mine = [p for positions in micro_batches for p in positions]
    rows: dict[str, Any] = {name: values for name, values in columns.items() if name not in ("loss_masks", EXPERTS)}
    for name in LOG_PROBS:
        if (given := getattr(batch, name)) is not None:
            rows.setdefault(name, given)
    names = sorted(rows)
    sums = [sum(_rollout_share(rows[name][p], batch, p) for p in mine if batch.response_lengths[p]) for name in names]
    _, rollout_of, siblings = np.unique(batch.rollout_ids, return_inverse=True, return_counts=True)
    shares = sum(1 / siblings[rollout_of[p]] for p in mine)
    *totals, rollouts = sum_over_ranks(torch.tensor([*sums, shares], dtype=torch.float64)).tolist()
    return {name: total / max(rollouts, 1) for name, total in zip(names, totals, strict=True)}


def _rollout_share(row: Any, batch: TrainBatch, position: int) -> float:
    """What a sample adds to its rollout's mean."""
    total = float((np.asarray(row, np.float64) * batch.loss_masks[position]).sum())
    return total / max(1, int(batch.rollout_mask_sums[position]))


def _concatenated(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(rows) if rows else np.zeros(0, np.float32)
