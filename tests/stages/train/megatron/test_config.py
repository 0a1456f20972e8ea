from __future__ import annotations

import dataclasses
from typing import Any

import torch

from slime_stages.config.megatron_fields import installed_fields
from stages.train.megatron.config import own_fields, rotary_frequencies


def config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 10,
        **changes,
    }


def test_frequencies_fall_by_the_base() -> None:
    frequencies = rotary_frequencies(config(rope_parameters={"rope_type": "default", "rope_theta": 100.0}))

    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1]))


def test_the_names_of_older_transformers_are_understood() -> None:
    frequencies = rotary_frequencies(config(rope_theta=100.0, rope_scaling={"type": "linear", "factor": 2.0}))

    torch.testing.assert_close(frequencies, torch.tensor([0.5, 0.05]))


def test_fields_of_the_user_reach_the_config_that_has_them() -> None:
    from megatron.core.optimizer import OptimizerConfig

    given = {"decoupled_weight_decay": False, "recompute_modules": ("mlp",), "overlap_grad_reduce": True}

    assert own_fields(OptimizerConfig, given) == {"decoupled_weight_decay": False}


def test_the_fields_read_from_the_source_are_those_of_the_classes() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    classes = (TransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
    assert installed_fields() == {field.name for each in classes for field in dataclasses.fields(each)}
