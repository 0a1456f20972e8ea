"""`--megatron-*`: fields of Megatron-Core's configs, checked against the source of the installed version.

The source is read, not imported: that would take seconds and load torch.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from slime_stages.config.fields import fields, suggestion
from slime_stages.errors import MissingInputError, UsageError

CONFIGS = {
    "ModelParallelConfig": "model_parallel_config.py",
    "TransformerConfig": "transformer/transformer_config.py",
    "DistributedDataParallelConfig": "distributed/distributed_data_parallel_config.py",
    "OptimizerConfig": "optimizer/optimizer_config.py",
}
"""The configs that a trainer makes, and where Megatron-Core defines them."""

FROM_MODEL = "the model's config.json decides it"
FROM_LOSS = "the loss arrives with every denominator in it"
OWNED = {
    **dict.fromkeys(("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), FROM_MODEL),
    **dict.fromkeys(("num_query_groups", "kv_channels", "normalization", "gated_linear_unit"), FROM_MODEL),
    **dict.fromkeys(("qk_layernorm", "add_qkv_bias", "add_bias_linear", "num_moe_experts"), FROM_MODEL),
    **dict.fromkeys(("moe_ffn_hidden_size", "moe_router_topk", "moe_layer_freq"), FROM_MODEL),
    "calculate_per_token_loss": "set `calculate_per_token_loss` in [algorithm]",
    "moe_router_load_balancing_type": f"{FROM_LOSS}, and a balancing loss would not have it",
    "moe_aux_loss_coeff": f"{FROM_LOSS}, and a balancing loss would not have it",
    "moe_z_loss_coeff": f"{FROM_LOSS}, and the routers' would not have it",
    "average_in_collective": FROM_LOSS,
    "overlap_param_gather": "weights are read between steps, for log-probs and checkpoints",
    "variable_seq_lengths": "packed rows differ in length always",
    "params_dtype": "set `bf16` in [train]",
    "pipeline_dtype": "set `bf16` in [train]",
    "fp16": "set `bf16` in [train]: gradients of float16 would need loss scaling",
    "virtual_pipeline_model_parallel_size": "set `num_layers_per_virtual_pipeline_stage` in [train]",
    "num_layers_in_first_pipeline_stage": "set `decoder_first_pipeline_num_layers` in [train]",
    "num_layers_in_last_pipeline_stage": "set `decoder_last_pipeline_num_layers` in [train]",
}
"""Fields that are not the user's to set, each with the reason or with what to do instead."""


def check_megatron_fields(given: Mapping[str, object]) -> None:
    """UsageError for a field that the installed Megatron-Core does not have, or that a setting of ours decides."""
    for name in given:
        flag = f"--megatron-{name.replace('_', '-')}"
        if name in fields():
            raise UsageError(f"`{flag}` is a setting of its own", hint=fields()[name].flag)
        if name in OWNED:
            raise UsageError(f"`{flag}` cannot be set: {OWNED[name]}", hint=f"remove {flag}")
        if name not in installed_fields():
            version = importlib.metadata.version("megatron-core")
            close = suggestion(name, sorted(installed_fields())) or f"remove {flag}"
            raise UsageError(f"Megatron-Core {version} has no field {name} ({flag})", hint=close)


@cache
def installed_fields() -> frozenset[str]:
    """Of all `CONFIGS`."""
    found = importlib.util.find_spec("megatron")
    folders = [Path(place) / "core" for place in (found.submodule_search_locations or ())] if found else []
    known = [folder for folder in folders if (folder / CONFIGS["ModelParallelConfig"]).exists()]
    if not known:
        raise MissingInputError("Megatron-Core is not installed, whose fields `--megatron-*` set", hint="make install")
    return frozenset(name for kind, path in CONFIGS.items() for name in _fields_of(kind, known[0] / path))


def _fields_of(kind: str, path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
