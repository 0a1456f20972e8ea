"""What a trainer can be told; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """Names and meanings are Megatron's; `rollout_temperature` is slime's."""

    tensor_model_parallel_size: int = 1
    """Ranks that share the weights of each layer."""

    sequence_parallel: bool = False
    """Between those layers each of these ranks has a part of the tokens only."""

    pipeline_model_parallel_size: int = 1
    """Ranks with a part of the layers each, one after the other."""

    num_layers_per_virtual_pipeline_stage: int | None = None
    """Layers in a row on one of them; without it all of a rank's layers are."""

    decoder_first_pipeline_num_layers: int | None = None

    decoder_last_pipeline_num_layers: int | None = None

    context_parallel_size: int = 1
    """Ranks with a part of the tokens each, also within attention."""

    expert_model_parallel_size: int = 1
    """Ranks with a part of the experts each."""

    expert_tensor_parallel_size: int | None = None
    """Ranks that share the weights of each expert; as many as of any layer unless told otherwise."""

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

    recompute_granularity: Literal["full", "selective"] | None = None
    """full: keep only the inputs of each layer and run its forward again in the backward pass. selective: do so with
    `recompute_modules`."""

    recompute_method: Literal["uniform", "block"] | None = None

    recompute_num_layers: int | None = None

    recompute_modules: tuple[str, ...] | None = None

    replays_routing: bool = False
    """Micro-batches say which experts their tokens go to."""

    mtp_num_layers: int | None = None
    """Layers for multi-token prediction; without any of the model's, they are in no memory and in no checkpoint."""

    enable_mtp_training: bool = False
    """They are trained; otherwise they stay as they are."""

    mtp_loss_scaling_factor: float = 0.2
    """What the mean of their losses is multiplied by."""

    megatron: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Megatron-Core's own configs, which win over what is derived from the model and from these settings."""

    log_probs_chunk_size: int = -1
    """Response tokens whose logits are in memory at a time; all of a micro-batch if it is not above 0."""

    rollout_temperature: float = 1.0
    """Logits are divided by it before log-probs are taken, as the engine did."""

    only_train_params_name_list: tuple[str, ...] | None = None
    """Patterns of the names of the parameters that are trained."""

    freeze_params_name_list: tuple[str, ...] | None = None
    """Patterns of those that are not."""

    seed: int = 1234
