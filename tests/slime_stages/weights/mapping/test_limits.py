from __future__ import annotations

from typing import Any

import pytest

from slime_stages.config.sections.train import Train
from slime_stages.errors import DataError, UsageError
from slime_stages.weights.mapping.limits import refuse_unsupported

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}


def config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 10,
        **changes,
    }


def test_what_is_not_supported_is_listed_with_its_value() -> None:
    with pytest.raises(DataError) as error:
        refuse_unsupported(config(rope_scaling={"rope_type": "yarn"}, attention_bias=True), Train())

    assert "rope_type 'yarn' (known: default, linear, llama3); attention_bias" in error.value.message


def test_a_window_that_only_mistral_knows_is_refused_there() -> None:
    with pytest.raises(DataError, match="sliding_window 4096"):
        refuse_unsupported(config(model_type="mistral", sliding_window=4096), Train())
    refuse_unsupported(config(model_type="qwen2", sliding_window=4096), Train())


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (
            {"tensor_model_parallel_size": 4},
            "tensor_model_parallel_size 4 does not divide num_attention_heads 2, num_key_value_heads 2",
        ),
        ({"pipeline_model_parallel_size": 3}, "pipeline_model_parallel_size 3 does not divide num_hidden_layers 4"),
        (
            {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 3},
            "num_layers_per_virtual_pipeline_stage 3 does not divide the 2 layers",
        ),
        ({"expert_model_parallel_size": 2}, "splits experts, and the model has none"),
        ({"use_routing_replay": True}, "routing replay is about experts, and the model has none"),
    ],
)
def test_a_split_that_the_model_does_not_allow_is_refused_with_the_numbers(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        refuse_unsupported(config(), Train(**sizes))


MIMO = {"model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("changes", "sizes", "says"),
    [
        ({}, {"mtp_num_layers": 1}, "is more than the model's layers for multi-token prediction, 0"),
        (MIMO, {"mtp_num_layers": 2}, "mtp_num_layers 2 is more than the model's layers for multi-token prediction, 1"),
        (
            {**MIMO, "tie_word_embeddings": True},
            {"mtp_num_layers": 1, "pipeline_model_parallel_size": 2},
            "several pipeline stages whose embeddings are its output layer",
        ),
    ],
)
def test_layers_for_prediction_that_the_model_has_not_are_refused(
    changes: dict[str, Any], sizes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        refuse_unsupported(config(**changes), Train(**sizes))
    refuse_unsupported(config(**MIMO), Train(mtp_num_layers=1, pipeline_model_parallel_size=2))


def test_stages_of_different_length_need_not_divide_the_layers() -> None:
    refuse_unsupported(config(), Train(pipeline_model_parallel_size=3, decoder_first_pipeline_num_layers=2))


def test_experts_are_split_over_tensor_parallel_ranks_with_their_tokens_only() -> None:
    mixture = config(model_type="qwen3_moe", **EXPERTS)

    with pytest.raises(UsageError, match="unless its tokens are, too") as error:
        refuse_unsupported(mixture, Train(tensor_model_parallel_size=2))

    assert error.value.hint == "--sequence-parallel"
    refuse_unsupported(mixture, Train(tensor_model_parallel_size=2, sequence_parallel=True))
    with pytest.raises(UsageError, match="expert_model_parallel_size 3 does not divide num_experts 4"):
        refuse_unsupported(mixture, Train(expert_model_parallel_size=3))
