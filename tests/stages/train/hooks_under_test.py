"""Functions as a user writes them, which the trainer calls; `CALLS` tells what they were called with."""

from __future__ import annotations

from typing import Any

import torch

from stages.train.megatron.log_probs import log_probs_of, scale_logits
from stages.train.megatron.model import PackedGPTModel, default_model

CALLS: list[tuple[Any, ...]] = []


def rewards_by_length(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    raw = [float(sample.response_length) for sample in samples]
    for sample in samples:
        sample.teacher_log_probs = [-1.0] * sample.response_length
    return raw, [value - 4.0 for value in raw]


def convert(args: Any, samples: list[Any]) -> dict[str, Any]:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [1.0] * len(samples),
        "loss_masks": [[1] * sample.response_length for sample in samples],
        "rollout_ids": [sample.rollout_id for sample in samples],
        "difficulty": [0.5 * sample.index for sample in samples],
    }


def post_process(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    CALLS.append(("post_process", rollout_id, sorted(rollout_data)))
    for mask, advantages in zip(rollout_data["loss_masks"], rollout_data["advantages"], strict=True):
        mask[0] = 0
        advantages *= 2.0


def without_advantages(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Leaves the policy nothing to follow."""
    for name in ("advantages", "returns"):
        rollout_data[name] = [torch.zeros_like(row) for row in rollout_data[name]]


def advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    rollout_data["advantages"] = [torch.full((n,), 3.0) for n in rollout_data["response_lengths"]]
    rollout_data["returns"] = [torch.zeros(n) for n in rollout_data["response_lengths"]]


def likelihood(args: Any, batch: dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Any:
    """`sft_loss` once more, and a number of the samples' own."""
    CALLS.append(("loss", sorted(batch), batch["metadata"][0], batch["colour"][0]))
    targets = torch.cat([t[-n:] for t, n in zip(batch["unconcat_tokens"], batch["response_lengths"], strict=True)])
    log_probs = log_probs_of(scale_logits(logits, args.rollout_temperature), targets)
    loss = sum_of_sample_mean(-log_probs)
    return loss, {"nll": loss.detach()}


def halve_and_drop_first(**given: Any) -> Any:
    CALLS.append(("tis", sorted(given)))
    masks = [mask.clone() for mask in given["loss_masks"]]
    for mask in masks:
        mask[0] = 0
    return given["pg_loss"] / 2, masks, {"mine": torch.ones_like(given["pg_loss"])}


def plain_sum(total_lengths: Any, response_lengths: Any, loss_masks: Any, calculate_per_token_loss: bool) -> Any:
    mask = torch.cat(list(loss_masks))
    return lambda values: (values * mask).sum()


def init(args: Any) -> None:
    CALLS.append(("init", args.lr))


def before_log_prob(args: Any, model: Any, store_prefix: str) -> None:
    CALLS.append(("before_log_prob", store_prefix, len(model)))


def before_train_step(args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, scheduler: Any) -> None:
    CALLS.append(("before_train_step", rollout_id, step_id, len(model), scheduler.num_steps))


def provide(pre_process: bool, post_process: bool, vp_stage: int | None = None) -> PackedGPTModel:
    CALLS.append(("provide", pre_process, post_process))
    return default_model(pre_process, post_process)
