"""What a trainer can be told; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """Names and meanings are Megatron's; `rollout_temperature` is slime's."""

    tensor_model_parallel_size: int = 1
    """Ranks that share one copy of the model; the world divided by it is the data-parallel size."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and activations; gradients, optimizer state and log-probs are float32 always."""

    lr: float = 1e-6

    min_lr: float = 0.0

    lr_warmup_init: float = 0.0

    lr_warmup_steps: int = 0
    """In the unit of `increment` of `Trainer.train_step`."""

    lr_decay_steps: int = 1_000_000
    """In the unit of `increment` of `Trainer.train_step`."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"

    weight_decay: float = 0.0
    """Not applied to biases and norms."""

    adam_beta1: float = 0.9

    adam_beta2: float = 0.999

    adam_eps: float = 1e-8

    clip_grad: float = 1.0
    """Largest gradient norm; 0 does not clip."""

    use_distributed_optimizer: bool = False
    """Split the optimizer state over data-parallel ranks."""

    recompute_granularity: Literal["full"] | None = None
    """full: keep only the inputs of each layer and run its forward again in the backward pass."""

    rollout_temperature: float = 1.0
    """Logits are divided by it before log-probs are taken, as the engine did."""

    only_train_params_name_list: tuple[str, ...] | None = None
    """Patterns of the names of the parameters that are trained."""

    freeze_params_name_list: tuple[str, ...] | None = None
    """Patterns of those that are not."""

    seed: int = 1234
