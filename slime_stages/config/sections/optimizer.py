"""[optimizer]: Adam and its learning rate."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from slime_stages.config.types import LocalPath, Section

Decay = Annotated[float, Ge(0), Lt(1)]


class Optimizer(Section):
    title: ClassVar[str] = "Adam and its learning rate"
    undigested: ClassVar[frozenset[str]] = frozenset({"megatron_config_path"})
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {"reset_optimizer_states", "check_for_nan_in_loss_and_grad", "megatron_roles"}
    )

    lr: NonNegativeFloat = 1e-6
    """Learning rate, after the warm-up."""

    min_lr: NonNegativeFloat = 0.0
    """Learning rate that the decay ends at."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"
    """How `lr` falls after the warm-up. Constant here, where Megatron says linear: a run need not know its end."""

    lr_decay_iters: PositiveInt | None = None
    """Optimizer steps until `min_lr`; all steps of `num_rollout` iterations without it."""

    lr_warmup_iters: NonNegativeInt = 0
    """Optimizer steps in which the learning rate rises from 0."""

    adam_beta1: Decay = 0.9
    """Decay of the gradient's running mean."""

    adam_beta2: Decay = 0.999
    """Decay of the squared gradient's running mean."""

    adam_eps: PositiveFloat = 1e-8
    """Added to the divisor."""

    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay, on matrices only."""

    clip_grad: NonNegativeFloat = 1.0
    """Gradients of a larger norm are scaled down to it; 0 for never."""

    reset_optimizer_states: bool = False
    """Begin every iteration with Adam's running means at 0."""

    check_for_nan_in_loss_and_grad: bool = True
    """Refuse an iteration with gradients that are not finite; otherwise that optimizer step is left out."""

    megatron_config_path: LocalPath | None = None
    """YAML file with values of these settings that hold for the policy (`role: actor`) or a critic (`critic`) alone."""

    megatron_roles: dict[str, Any] = Field(default={})
    """What `megatron_config_path` says, by role, as it was read when the run was made."""
