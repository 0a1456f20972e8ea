"""Which Hugging Face tensors make up a Megatron-Core parameter, and how they are laid out and sharded in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from slime_stages.errors import DataError
from slime_stages.weights.mapping.layout import WeightLayout

Kind = Literal["replicated", "row", "column", "qkv", "gate_up"]
"""replicated: every tensor-parallel rank holds all of it. row, column: split along dimension 0 or 1.
qkv: per key/value head its queries, its key, its value; split along dimension 0.
gate_up: gate above up; each is split along dimension 0."""

_OUTSIDE_LAYERS: dict[str, tuple[str, Kind]] = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight", "row"),
    "decoder.final_layernorm.weight": ("model.norm.weight", "replicated"),
    "output_layer.weight": ("lm_head.weight", "row"),
}

_INSIDE_LAYERS: dict[str, tuple[tuple[str, ...], Kind]] = {
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

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """Where one Megatron parameter comes from."""

    huggingface_names: tuple[str, ...]
    """In the order in which they are laid out in the Megatron parameter."""

    kind: Kind


def weight_rule(name: str, *, layer_offset: int = 0) -> WeightRule:
    """The rule of a Megatron parameter; `layer_offset` is the number of layers on earlier pipeline stages."""
    if name in _OUTSIDE_LAYERS:
        huggingface_name, kind = _OUTSIDE_LAYERS[name]
        return WeightRule(huggingface_names=(huggingface_name,), kind=kind)
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _INSIDE_LAYERS:
        raise DataError(
            f"no Hugging Face tensor is known for the Megatron parameter {name!r}",
            hint="models of type llama, qwen2 and qwen3 without experts are supported",
        )
    layer = int(match[1]) + layer_offset
    names, kind = _INSIDE_LAYERS[match[2]]
    return WeightRule(huggingface_names=tuple(f"model.layers.{layer}.{each}" for each in names), kind=kind)


def megatron_names(layout: WeightLayout, *, qkv_bias: bool, qk_layernorm: bool) -> Iterator[str]:
    """All parameters of a whole model, in the order of the layers."""
    yield "embedding.word_embeddings.weight"
    for layer in range(layout.num_layers):
        for suffix in _INSIDE_LAYERS:
            if suffix.endswith("linear_qkv.bias") and not qkv_bias:
                continue
            if suffix.endswith(("q_layernorm.weight", "k_layernorm.weight")) and not qk_layernorm:
                continue
            yield f"decoder.layers.{layer}.{suffix}"
    yield "decoder.final_layernorm.weight"
    if not layout.tie_word_embeddings:
        yield "output_layer.weight"
