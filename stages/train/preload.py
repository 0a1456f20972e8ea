"""The imports of training and of the check after sync, for a process that forks its stages. Computes nothing."""

from __future__ import annotations

import importlib

MODULES = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "stages.train.megatron",  # first: it silences what Megatron-Core says of absent packages
    "megatron.core",
    "megatron.core.dist_checkpointing",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
    "stages.train.megatron.model",
    "stages.train.megatron.optimizer",
    "stages.train.partial",
    "stages.train.policy",
    "stages.train.batch",
    "stages.train.gate",
    "stages.train.report",
    "stages.train.steps",
    "stages.train.stopping",
    "slime_stages.weights.export",
    "slime_stages.weights.verify",
)

for name in MODULES:
    importlib.import_module(name)
