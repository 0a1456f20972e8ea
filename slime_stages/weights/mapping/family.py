"""What sets a family of models apart: one file in `families` each, which has a `FAMILY`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_stages.weights.mapping.names import INSIDE_LAYERS, Names, PredictionNames

HuggingFaceConfig = Mapping[str, Any]
"""A model's `config.json`."""

EXPERTS: Names = {
    "linear_fc1.weight": (
        ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"),
        "gate_up",
    ),
    "linear_fc2.weight": (("mlp.experts.{expert}.down_proj.weight",), "column"),
}
ROUTER: Names = {"mlp.router.weight": (("mlp.gate.weight",), "replicated")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture-of-experts model."""

    count: int

    per_token: int
    """How many of them each token goes to."""

    intermediate_size: int
    """Of one expert."""

    is_normalized: bool
    """The weights of a token's experts sum to 1; otherwise they are their share among all."""

    shared_intermediate_size: int | None = None
    """Of the expert that every token goes to, behind a gate, if there is one."""

    dense_layers: frozenset[int] = frozenset()
    """Layers without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to read the config and the weights of one `model_type`."""

    model_type: str

    inside_layers: Names = field(default_factory=lambda: INSIDE_LAYERS)

    experts_inside_layers: Names = field(default_factory=lambda: EXPERTS)

    has_query_key_norms: bool = False

    has_query_key_value_biases: Callable[[HuggingFaceConfig], bool] = lambda config: False

    experts: Callable[[HuggingFaceConfig], Experts | None] = lambda config: None

    prediction: PredictionNames | None = None
    """Of layers for multi-token prediction, where the family has them."""

    prediction_count: Callable[[HuggingFaceConfig], int] = lambda config: 0
    """How many of them a model has."""

    read_as: str | None = None
    """The `model_type` whose class of transformers reads all other layers, where it has none for this one."""

    unsupported: Callable[[HuggingFaceConfig], Mapping[str, bool]] = lambda config: {}
    """What this family's config may ask for and the trainer does not do, and whether it does ask for it."""


def qwen_experts(config: HuggingFaceConfig) -> Experts:
    """As all of Qwen's mixtures name them, without the one that all tokens go to."""
    layers = range(config["num_hidden_layers"])
    sparse_step, dense = config.get("decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    return Experts(
        count=config["num_experts"] if "num_experts" in config else config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        is_normalized=bool(config.get("norm_topk_prob", False)),
        dense_layers=frozenset(layer for layer in layers if layer in dense or (layer + 1) % sparse_step),
    )
