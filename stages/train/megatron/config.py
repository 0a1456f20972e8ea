"""Megatron's `TransformerConfig` from a Hugging Face config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from slime_stages.weights.mapping.family import Experts
from slime_stages.weights.mapping.layout import WeightLayout, weight_layout
from slime_stages.weights.mapping.limits import refuse_unsupported, rope_parameters
from stages.train.megatron.settings import TrainerSettings

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
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
    fields: dict[str, Any] = {
        "num_layers": layout.num_layers,
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": layout.num_attention_heads,
        "num_query_groups": layout.num_query_groups,
        "kv_channels": layout.kv_channels,
        "normalization": "RMSNorm",
        "layernorm_epsilon": config["rms_norm_eps"],
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": layout.family.has_query_key_value_biases(config),
        "qk_layernorm": layout.family.has_query_key_norms,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "mtp_num_layers": settings.mtp_num_layers,
        # The loss arrives complete: with per-token loss and a count of zero Megatron divides it by nothing.
        "calculate_per_token_loss": True,
        # Weights come from a checkpoint. Initialisation must run all the same: it marks the sharded parameters.
        "init_method": _leave_as_is,
        "output_layer_init_method": _leave_as_is,
        "embedding_init_method": _leave_as_is,
        "use_cpu_initialization": not torch.cuda.is_available(),
        **WITHOUT_FUSED_KERNELS,
        **_parallel_fields(layout, settings),
        **_recomputation_fields(settings),
        **(_expert_fields(layout.experts, layout.num_layers) if layout.experts is not None else {}),
    }
    return TransformerConfig(**fields | own_fields(TransformerConfig, settings.megatron))


def own_fields(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given fields that a Megatron-Core config has."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {n: list(value) if isinstance(value, tuple) else value for n, value in given.items() if n in known}


def _parallel_fields(layout: WeightLayout, settings: TrainerSettings) -> dict[str, Any]:
    virtual = virtual_stage_count(layout, settings)
    return {
        "tensor_model_parallel_size": settings.tensor_model_parallel_size,
        "sequence_parallel": settings.sequence_parallel,
        "pipeline_model_parallel_size": settings.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": virtual,
        "num_layers_in_first_pipeline_stage": settings.decoder_first_pipeline_num_layers,
        "num_layers_in_last_pipeline_stage": settings.decoder_last_pipeline_num_layers,
        "context_parallel_size": settings.context_parallel_size,
        "expert_model_parallel_size": settings.expert_model_parallel_size,
        "expert_tensor_parallel_size": settings.expert_tensor_parallel_size,
        # Packed rows differ in length, which pipeline stages tell each other.
        "variable_seq_lengths": settings.pipeline_model_parallel_size > 1,
        "moe_token_dispatcher_type": "alltoall",  # the only one for variable lengths, also of a dense model
        # Over gloo, virtual stages get each other's tensors unless they talk one by one.
        "overlap_p2p_comm": virtual is not None,
        "batch_p2p_comm": virtual is None,
    }


def virtual_stage_count(layout: WeightLayout, settings: TrainerSettings) -> int | None:
    """Pieces that the layers of each pipeline rank are cut into."""
    each = settings.num_layers_per_virtual_pipeline_stage
    return None if each is None else layout.num_layers // settings.pipeline_model_parallel_size // each


def _recomputation_fields(settings: TrainerSettings) -> dict[str, Any]:
    if settings.recompute_granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": settings.recompute_method or "uniform",
            "recompute_num_layers": settings.recompute_num_layers or 1,
        }
    modules = {} if settings.recompute_modules is None else {"recompute_modules": list(settings.recompute_modules)}
    return {"recompute_granularity": settings.recompute_granularity, **modules}


def _expert_fields(experts: Experts, num_layers: int) -> dict[str, Any]:
    is_sparse = [int(layer not in experts.dense_layers) for layer in range(num_layers)]
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.per_token,
        "moe_ffn_hidden_size": experts.intermediate_size,
        "moe_shared_expert_intermediate_size": experts.shared_intermediate_size,
        "moe_shared_expert_gate": experts.shared_intermediate_size is not None,
        "moe_layer_freq": 1 if all(is_sparse) else is_sparse,
        # Softmax over the chosen experts is softmax over all of them, made to sum to 1.
        "moe_router_pre_softmax": not experts.is_normalized,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
    }


def _leave_as_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def rotary_frequencies(config: dict[str, Any]) -> torch.Tensor:
    """[head width / 2] radians a position turns each pair of channels by."""
    rope = rope_parameters(config)
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
