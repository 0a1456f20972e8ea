"""The numbers of a model that decide how its weights are laid out, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, MissingInputError
from slime_stages.weights.mapping.families import families
from slime_stages.weights.mapping.family import Experts, Family
from slime_stages.weights.mapping.names import TIED_OUTPUT_LAYER, WeightRule, weight_rule

_ANY_DENSE = Family(model_type="any dense model")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """What splitting a fused query/key/value weight into its heads needs to know, and the names around it."""

    num_layers: int

    num_attention_heads: int

    num_query_groups: int
    """Key/value heads; a divisor of the attention heads."""

    kv_channels: int
    """Width of one head."""

    tie_word_embeddings: bool
    """The output layer has no weight of its own."""

    experts: Experts | None = None

    prediction_count: int = 0
    """Layers for multi-token prediction."""

    family: Family = _ANY_DENSE

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_query_groups:
            raise DataError(
                f"{self.num_attention_heads} attention heads do not fit {self.num_query_groups} key/value heads",
                hint="check num_attention_heads and num_key_value_heads in config.json",
            )

    def rule(self, name: str, *, layer_offset: int = 0, expert_offset: int = 0) -> WeightRule:
        """Where a Megatron parameter comes from, by its name on a rank whose first layer and expert these are."""
        if self.tie_word_embeddings and name == TIED_OUTPUT_LAYER:  # the last pipeline stage's copy
            name = "embedding.word_embeddings.weight"
        return weight_rule(
            name,
            self.family.inside_layers,
            self.family.experts_inside_layers if self.experts is not None else None,
            layer_offset=layer_offset,
            expert_offset=expert_offset,
            prediction=self.family.prediction,
        )

    def is_of_prediction(self, huggingface_name: str) -> bool:
        """A tensor of a layer for multi-token prediction, which a trainer may do without."""
        if self.family.prediction is None:
            return False
        prefixes = [self.family.prediction.prefix.format(layer=layer) for layer in range(self.prediction_count)]
        return huggingface_name.startswith(tuple(prefixes))


def read_huggingface_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`; refuses architectures that no mapping exists for."""
    path = folder / "config.json"
    if not path.is_file():
        raise MissingInputError(f"{folder} holds no config.json", hint="name a folder in Hugging Face format")
    config: dict[str, Any] = json.loads(path.read_text())
    model_type = config.get("model_type")
    if model_type not in families():
        raise DataError(
            f"{path} describes model_type {model_type!r}, which is not supported",
            hint=f"use a model of one of these types: {', '.join(families())}",
        )
    return config


def weight_layout(config: dict[str, Any]) -> WeightLayout:
    """The layout that a Hugging Face config describes."""
    heads, family = config["num_attention_heads"], families().get(config.get("model_type", ""), _ANY_DENSE)
    return WeightLayout(
        num_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_query_groups=config.get("num_key_value_heads") or heads,
        kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        experts=family.experts(config),
        prediction_count=family.prediction_count(config),
        family=family,
    )
