from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from slime_stages.errors import DataError, UsageError
from stages.train.megatron.config import refuse_unsupported, rotary_frequencies
from stages.train.megatron.settings import TrainerSettings

SETTINGS = TrainerSettings()


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


def test_what_is_not_supported_is_listed_with_its_value() -> None:
    with pytest.raises(DataError) as error:
        refuse_unsupported(config(rope_scaling={"rope_type": "yarn"}, attention_bias=True), SETTINGS)

    assert "rope_type 'yarn' (known: default, linear, llama3); attention_bias" in error.value.message


def test_a_tensor_parallel_size_that_does_not_fit_names_the_counts() -> None:
    with pytest.raises(UsageError, match="size 4 does not divide num_attention_heads 2, num_key_value_heads 2"):
        refuse_unsupported(config(), replace(SETTINGS, tensor_model_parallel_size=4))
