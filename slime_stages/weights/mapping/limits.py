"""What a model's config may ask for, and how it may be split over processes; told before anything runs."""

from __future__ import annotations

from typing import Any, Protocol

from slime_stages.errors import DataError, UsageError
from slime_stages.weights.mapping.layout import WeightLayout, weight_layout

ROPE_TYPES = ("default", "linear", "llama3")


class ParallelSizes(Protocol):
    """The settings that split a model."""

    @property
    def tensor_model_parallel_size(self) -> int: ...
    @property
    def sequence_parallel(self) -> bool: ...
    @property
    def pipeline_model_parallel_size(self) -> int: ...
    @property
    def num_layers_per_virtual_pipeline_stage(self) -> int | None: ...
    @property
    def decoder_first_pipeline_num_layers(self) -> int | None: ...
    @property
    def decoder_last_pipeline_num_layers(self) -> int | None: ...
    @property
    def expert_model_parallel_size(self) -> int: ...
    @property
    def expert_tensor_parallel_size(self) -> int | None: ...
    @property
    def replays_routing(self) -> bool: ...
    @property
    def mtp_num_layers(self) -> int | None: ...


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Transformers 5 nests them in `rope_parameters`; before, they were `rope_theta` and `rope_scaling`."""
    parameters = {"rope_theta": config.get("rope_theta", 10000.0)}
    parameters |= config.get("rope_scaling") or {}
    parameters |= config.get("rope_parameters") or {}
    parameters["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    return parameters


def refuse_unsupported(config: dict[str, Any], sizes: ParallelSizes) -> None:
    """Say at once what the trainer would compute wrongly or could not split."""
    rope_type = rope_parameters(config)["rope_type"]
    layout = weight_layout(config)
    unsupported = {
        f"rope_type {rope_type!r} (known: {', '.join(ROPE_TYPES)})": rope_type not in ROPE_TYPES,
        f"hidden_act {config.get('hidden_act')!r} (known: silu)": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias", False))
        and not layout.family.has_query_key_value_biases(config),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0) != 1.0,
        "attention_dropout": config.get("attention_dropout", 0.0) != 0.0,
        "quantization_config": config.get("quantization_config") is not None,
        **layout.family.unsupported(config),
    }
    found = [name for name, present in unsupported.items() if present]
    if found:
        raise DataError(
            f"the model's config.json asks for what the trainer does not support: {'; '.join(found)}",
            hint="use a Llama, Mistral, Qwen or MiMo model without these settings",
        )
    if sizes.replays_routing and layout.experts is None:
        raise UsageError("routing replay is about experts, and the model has none", hint="drop it")
    _refuse_prediction(layout, sizes)
    _refuse_indivisible(config, layout, sizes)
    if layout.experts is not None and sizes.tensor_model_parallel_size > 1 and not sizes.sequence_parallel:
        raise UsageError(
            "a model with experts is not split over tensor-parallel ranks unless its tokens are, too",
            hint="--sequence-parallel",
        )


def _refuse_prediction(layout: WeightLayout, sizes: ParallelSizes) -> None:
    wanted, count = sizes.mtp_num_layers or 0, layout.prediction_count
    if wanted > count:
        raise UsageError(
            f"mtp_num_layers {wanted} is more than the model's layers for multi-token prediction, {count}",
            hint=f"mtp_num_layers = {count}" if count else "leave mtp_num_layers out, or use a MiMo model",
        )
    if wanted and layout.tie_word_embeddings and sizes.pipeline_model_parallel_size > 1:
        raise UsageError(
            "mtp_num_layers is not for a model of several pipeline stages whose embeddings are its output layer, too",
            hint="pipeline_model_parallel_size = 1",
        )


def _refuse_indivisible(config: dict[str, Any], layout: WeightLayout, sizes: ParallelSizes) -> None:
    counts: dict[str, dict[str, int]] = {"expert_model_parallel_size": {}, "pipeline_model_parallel_size": {}}
    counts["tensor_model_parallel_size"] = {
        "num_attention_heads": layout.num_attention_heads,
        "num_key_value_heads": layout.num_query_groups,
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
    }
    if layout.experts is not None:
        counts["expert_model_parallel_size"] = {"num_experts": layout.experts.count}
    if sizes.decoder_first_pipeline_num_layers is None and sizes.decoder_last_pipeline_num_layers is None:
        counts["pipeline_model_parallel_size"] = {"num_hidden_layers": layout.num_layers}
    for name, parts in counts.items():
        size = getattr(sizes, name)
        if indivisible := [f"{part} {count}" for part, count in parts.items() if count % size]:
            raise UsageError(
                f"{name} {size} does not divide {', '.join(indivisible)} of the model",
                hint=f"choose a {name} that divides all of them; 1 always does",
            )
    each = sizes.num_layers_per_virtual_pipeline_stage
    if each is not None and (layout.num_layers // sizes.pipeline_model_parallel_size) % each:
        raise UsageError(
            f"num_layers_per_virtual_pipeline_stage {each} does not divide the"
            f" {layout.num_layers // sizes.pipeline_model_parallel_size} layers of a pipeline stage",
            hint="choose a divisor of num_hidden_layers / pipeline_model_parallel_size",
        )
    if sizes.expert_model_parallel_size > 1 and layout.experts is None:
        raise UsageError("expert_model_parallel_size splits experts, and the model has none", hint="drop it")
