"""MiMo: Qwen 2's layers, and behind them layers that predict a token further ahead."""

from __future__ import annotations

from slime_stages.weights.mapping.family import Family
from slime_stages.weights.mapping.names import PredictionNames

FAMILY = Family(
    model_type="mimo",
    read_as="qwen2",
    has_query_key_value_biases=lambda config: True,
    prediction=PredictionNames(
        prefix="model.mtp_layers.{layer}.",
        around={
            "enorm.weight": (("token_layernorm.weight",), "replicated"),
            "hnorm.weight": (("hidden_layernorm.weight",), "replicated"),
            # Megatron has the embedding on the left and the hidden state on the right.
            "eh_proj.weight": (("input_proj.weight",), "halves_row"),
            "final_layernorm.weight": (("final_layernorm.weight",), "replicated"),
        },
    ),
    prediction_count=lambda config: int(config.get("num_nextn_predict_layers") or 0),
)
