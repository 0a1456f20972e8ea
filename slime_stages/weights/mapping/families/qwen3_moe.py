"""Qwen 3 with experts."""

from __future__ import annotations

from slime_stages.weights.mapping.family import ROUTER, Family, qwen_experts
from slime_stages.weights.mapping.names import INSIDE_LAYERS

FAMILY = Family(
    model_type="qwen3_moe",
    inside_layers={**INSIDE_LAYERS, **ROUTER},
    has_query_key_norms=True,
    experts=qwen_experts,
)
