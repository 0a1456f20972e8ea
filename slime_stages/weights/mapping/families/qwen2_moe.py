"""Qwen 1.5 and 2 with experts, one of which every token goes to."""

from __future__ import annotations

from dataclasses import replace

from slime_stages.weights.mapping.family import ROUTER, Family, qwen_experts
from slime_stages.weights.mapping.names import INSIDE_LAYERS, Names

SHARED_EXPERT: Names = {
    "mlp.shared_experts.linear_fc1.weight": (
        ("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"),
        "gate_up",
    ),
    "mlp.shared_experts.linear_fc2.weight": (("mlp.shared_expert.down_proj.weight",), "column"),
    "mlp.shared_experts.gate_weight": (("mlp.shared_expert_gate.weight",), "replicated"),
}

FAMILY = Family(
    model_type="qwen2_moe",
    inside_layers={**INSIDE_LAYERS, **ROUTER, **SHARED_EXPERT},
    has_query_key_value_biases=lambda config: bool(config.get("qkv_bias", True)),
    experts=lambda config: replace(
        qwen_experts(config), shared_intermediate_size=config["shared_expert_intermediate_size"]
    ),
)
