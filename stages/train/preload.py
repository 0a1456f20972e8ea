"""The imports of training and of the check after sync, for a process that forks its stages. Computes nothing."""

from __future__ import annotations

import importlib
import warnings

MODULES = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "megatron.core",
    "megatron.core.dist_checkpointing",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
    "stages.train.megatron.model",
    "stages.train.megatron.optimizer",
    "stages.train.policy",
    "stages.train.batch",
    "stages.train.gate",
    "stages.train.report",
    "stages.train.steps",
    "slime_stages.weights.export",
    "slime_stages.weights.verify",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in MODULES:
        importlib.import_module(name)
