"""Which Hugging Face tensors make up a Megatron-Core parameter, and how they are laid out and sharded in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slime_stages.errors import DataError

Kind = Literal["replicated", "row", "column", "qkv", "gate_up", "halves_row"]
"""replicated: every tensor-parallel rank holds all of it. row, column: split along dimension 0 or 1.
qkv: per key/value head its queries, its key, its value; split along dimension 0.
gate_up: gate above up; each is split along dimension 0.
halves_row: a row whose left and right half have changed places."""

Names = Mapping[str, tuple[tuple[str, ...], Kind]]
"""A Megatron parameter by its name within a layer, or within an expert: Hugging Face names in the order in which they
are laid out in it."""

OUTSIDE_LAYERS: Names = {
    "embedding.word_embeddings.weight": (("model.embed_tokens.weight",), "row"),
    "decoder.final_layernorm.weight": (("model.norm.weight",), "replicated"),
    "output_layer.weight": (("lm_head.weight",), "row"),
}

INSIDE_LAYERS: Names = {
    "input_layernorm.weight": (("input_layernorm.weight",), "replicated"),
    "self_attention.linear_qkv.weight": (tuple(f"self_attn.{x}_proj.weight" for x in "qkv"), "qkv"),
    "self_attention.linear_qkv.bias": (tuple(f"self_attn.{x}_proj.bias" for x in "qkv"), "qkv"),
    "self_attention.q_layernorm.weight": (("self_attn.q_norm.weight",), "replicated"),
    "self_attention.k_layernorm.weight": (("self_attn.k_norm.weight",), "replicated"),
    "self_attention.linear_proj.weight": (("self_attn.o_proj.weight",), "column"),
    "pre_mlp_layernorm.weight": (("post_attention_layernorm.weight",), "replicated"),
    "mlp.linear_fc1.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "mlp.linear_fc2.weight": (("mlp.down_proj.weight",), "column"),
}
"""Of a dense layer as Llama and Qwen name it."""

FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""Norms that Transformer Engine makes one with the projection after them, and their names in Megatron's own layers."""

TIED_OUTPUT_LAYER = "output_layer.weight"

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_PREDICTION_LAYER = re.compile(r"mtp\.layers\.(\d+)\.(?:transformer_layer\.)?(.+)")
_EXPERTS = (
    re.compile(r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.(?P<name>linear_fc[12]\.weight)"),
    re.compile(r"mlp\.experts\.(?P<name>linear_fc[12]\.weight)(?P<expert>\d+)"),
)
"""Experts one after the other, and Transformer Engine's grouped ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionNames:
    """Of the layers for multi-token prediction (MTP), which have a transformer layer each."""

    prefix: str
    """Of a layer's Hugging Face names, with a place for its number."""

    around: Names
    """Beside what is in the transformer layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """Where one Megatron parameter comes from."""

    huggingface_names: tuple[str, ...]
    """In the order in which they are laid out in the Megatron parameter."""

    kind: Kind

    is_expert: bool = False
    """Split over expert-tensor-parallel ranks, not over tensor-parallel ones."""


def weight_rule(
    name: str,
    inside_layers: Names,
    experts: Names | None,
    *,
    layer_offset: int,
    expert_offset: int,
    prediction: PredictionNames | None = None,
) -> WeightRule:
    """The rule of a Megatron parameter whose layers and experts are numbered on its rank: the offsets are those of the
    rank's first. Names of `experts` have a place for the expert's number."""
    if name in OUTSIDE_LAYERS:
        huggingface_names, kind = OUTSIDE_LAYERS[name]
        return WeightRule(huggingface_names=huggingface_names, kind=kind)
    prefix = suffix = ""
    if (match := _LAYER.fullmatch(name)) is not None:
        prefix, suffix = f"model.layers.{int(match[1]) + layer_offset}.", match[2]
    elif prediction is not None and (match := _PREDICTION_LAYER.fullmatch(name)) is not None:
        prefix, suffix = prediction.prefix.format(layer=match[1]), match[2]
        inside_layers = {**inside_layers, **prediction.around}
    suffix = FUSED_NORMS.get(suffix, suffix)
    if suffix in inside_layers:
        huggingface_names, kind = inside_layers[suffix]
        return WeightRule(huggingface_names=tuple(prefix + each for each in huggingface_names), kind=kind)
    found = next((known for pattern in _EXPERTS if (known := pattern.fullmatch(suffix))), None)
    if found is not None and found["name"] in (experts or {}):
        assert experts is not None
        expert = int(found["expert"]) + expert_offset
        huggingface_names, kind = experts[found["name"]]
        return WeightRule(
            huggingface_names=tuple(prefix + each.format(expert=expert) for each in huggingface_names),
            kind=kind,
            is_expert=True,
        )
    raise DataError(
        f"no Hugging Face tensor is known for the Megatron parameter {name!r}",
        hint="its name belongs into the model's file in slime_stages/weights/mapping/families",
    )
