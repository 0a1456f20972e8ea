"""Megatron's optimizer and learning-rate scheduler for one model, and the step that skips bad gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from stages.train.megatron.config import DTYPES, own_fields
from stages.train.megatron.settings import TrainerSettings


def build_optimizer(chunks: list[Any], settings: TrainerSettings) -> Any:
    """AdamW over the parameters of a model's chunks, each in a `DistributedDataParallel`."""
    fields: dict[str, Any] = {
        "optimizer": "adam",
        "lr": settings.lr,
        "min_lr": settings.min_lr,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_eps,
        "clip_grad": settings.clip_grad,
        "use_distributed_optimizer": settings.use_distributed_optimizer,
        "bf16": settings.dtype == "bfloat16",
        "params_dtype": DTYPES[settings.dtype],
    }
    own = own_fields(OptimizerConfig, settings.megatron)
    optimizer = get_megatron_optimizer(OptimizerConfig(**fields | own), chunks)
    for each in optimizer.chained_optimizers:
        if isinstance(each.optimizer, torch.optim.AdamW):
            for group in each.optimizer.param_groups:
                group["fused"] = True  # One pass over memory instead of about ten.
    return optimizer


def build_scheduler(optimizer: Any, settings: TrainerSettings) -> OptimizerParamScheduler:
    return OptimizerParamScheduler(
        optimizer,
        init_lr=settings.lr_warmup_init,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_steps,
        lr_decay_steps=settings.lr_decay_steps,
        lr_decay_style=settings.lr_decay_style,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=settings.lr_decay_steps,
        wd_incr_style="constant",
    )


@torch.no_grad()
def apply_gradients(optimizer: Any, clip_grad: float) -> tuple[float, bool]:
    """The gradient norm before clipping, and whether the parameters were updated: not if it is NaN or infinite."""
    if optimizer.prepare_grads():
        return math.inf, False
    grad_norm = float(optimizer.get_grad_norm())
    if not math.isfinite(grad_norm):
        return grad_norm, False
    for each in optimizer.chained_optimizers:
        parameters = each.get_parameters()
        if clip_grad > 0.0 and parameters:
            clip_grad_by_total_norm_fp32(parameters, max_norm=clip_grad, total_norm=grad_norm)
    return grad_norm, bool(optimizer.step_with_ready_grads())
