"""Megatron's `TransformerConfig` from a Hugging Face config."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from slime_stages.errors import DataError, UsageError
from slime_stages.weights.mapping.layout import weight_layout
from stages.train.megatron.settings import TrainerSettings

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROPE_TYPES = ("default", "linear", "llama3")
WITHOUT_FUSED_KERNELS = {
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
}
"""They need Apex or Transformer Engine."""


def transformer_config(config: dict[str, Any], settings: TrainerSettings) -> TransformerConfig:
    """The part of the model that Megatron configures; rotary frequencies are `rotary_frequencies`."""
    from megatron.core.transformer import TransformerConfig

    refuse_unsupported(config, settings)
    layout = weight_layout(config)
    dtype = DTYPES[settings.dtype]
    recompute = {"recompute_method": "uniform", "recompute_num_layers": 1} if settings.recompute_granularity else {}
    return TransformerConfig(
        num_layers=layout.num_layers,
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=layout.num_attention_heads,
        num_query_groups=layout.num_query_groups,
        kv_channels=layout.kv_channels,
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=config["model_type"] == "qwen2",
        qk_layernorm=config["model_type"] == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        tensor_model_parallel_size=settings.tensor_model_parallel_size,
        recompute_granularity=settings.recompute_granularity,
        # The loss arrives complete: with per-token loss and a count of zero Megatron divides it by nothing.
        calculate_per_token_loss=True,
        # Weights come from a checkpoint. Initialisation must run all the same: it marks the sharded parameters.
        init_method=_leave_as_is,
        output_layer_init_method=_leave_as_is,
        embedding_init_method=_leave_as_is,
        use_cpu_initialization=not torch.cuda.is_available(),
        **WITHOUT_FUSED_KERNELS,
        **recompute,
    )


def _leave_as_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def rotary_frequencies(config: dict[str, Any]) -> torch.Tensor:
    """[head width / 2] radians a position turns each pair of channels by."""
    rope = _rope_parameters(config)
    width = weight_layout(config).kv_channels
    exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    frequencies: torch.Tensor = 1.0 / (float(rope["rope_theta"]) ** exponents)
    if rope["rope_type"] == "linear":
        frequencies /= rope["factor"]
    if rope["rope_type"] == "llama3":
        frequencies = _stretch_long_wavelengths(frequencies, rope)
    return frequencies


def _stretch_long_wavelengths(frequencies: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3: long wavelengths are divided by the factor, short ones kept, those between interpolated."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    stretched: torch.Tensor = frequencies * (kept + (1 - kept) / factor)
    return stretched


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Transformers 5 nests them in `rope_parameters`; before, they were `rope_theta` and `rope_scaling`."""
    parameters = {"rope_theta": config.get("rope_theta", 10000.0)}
    parameters |= config.get("rope_scaling") or {}
    parameters |= config.get("rope_parameters") or {}
    parameters["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    return parameters


def refuse_unsupported(config: dict[str, Any], settings: TrainerSettings) -> None:
    """Say at once what the trainer would compute wrongly or could not split."""
    rope_type = _rope_parameters(config)["rope_type"]
    unsupported = {
        f"rope_type {rope_type!r} (known: {', '.join(ROPE_TYPES)})": rope_type not in ROPE_TYPES,
        f"hidden_act {config.get('hidden_act')!r} (known: silu)": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0) != 1.0,
        "attention_dropout": config.get("attention_dropout", 0.0) != 0.0,
        "quantization_config": config.get("quantization_config") is not None,
    }
    found = [name for name, present in unsupported.items() if present]
    if found:
        raise DataError(
            f"the model's config.json asks for what the trainer does not support: {'; '.join(found)}",
            hint="use a dense Llama, Qwen2 or Qwen3 model without these settings",
        )
    size = settings.tensor_model_parallel_size
    layout = weight_layout(config)
    counts = {
        "num_attention_heads": layout.num_attention_heads,
        "num_key_value_heads": layout.num_query_groups,
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
    }
    indivisible = [f"{name} {count}" for name, count in counts.items() if count % size]
    if indivisible:
        raise UsageError(
            f"tensor_model_parallel_size {size} does not divide {', '.join(indivisible)} of the model",
            hint="choose a tensor_model_parallel_size that divides all of them; 1 always does",
        )
