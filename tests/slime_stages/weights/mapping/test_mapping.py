from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from slime_stages.errors import DataError, MissingInputError
from slime_stages.weights.mapping.layout import WeightLayout, read_huggingface_config, weight_layout
from slime_stages.weights.mapping.names import INSIDE_LAYERS, OUTSIDE_LAYERS
from slime_stages.weights.mapping.reader import HuggingFaceReader
from slime_stages.weights.mapping.tensors import (
    Place,
    cut_shard,
    join_shards,
    join_tensors,
    to_huggingface,
    to_megatron,
)

LAYOUT = WeightLayout(num_layers=2, num_attention_heads=4, num_query_groups=2, kv_channels=1, tie_word_embeddings=True)
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
GATE_UP = "decoder.layers.0.mlp.linear_fc1.weight"


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values).reshape(-1, 1)


def test_queries_keys_and_values_are_interleaved_by_key_value_head() -> None:
    whole = join_tensors(LAYOUT.rule(QKV), [column(1, 2, 3, 4), column(10, 20), column(100, 200)], LAYOUT)

    assert whole.flatten().tolist() == [1, 2, 10, 100, 3, 4, 20, 200]


def test_gate_and_up_are_each_cut_so_that_a_rank_holds_matching_rows() -> None:
    rule = LAYOUT.rule(GATE_UP)
    whole = join_tensors(rule, [column(1, 2), column(10, 20)], LAYOUT)

    shards = [cut_shard(rule, whole, rank=rank, size=2) for rank in (0, 1)]

    assert [shard.flatten().tolist() for shard in shards] == [[1, 10], [2, 20]]
    assert join_shards(rule, shards).flatten().tolist() == [1, 2, 10, 20]


def test_a_layer_on_a_later_pipeline_stage_keeps_its_global_number() -> None:
    rule = LAYOUT.rule("decoder.layers.1.mlp.linear_fc2.weight", layer_offset=12)

    assert rule.huggingface_names == ("model.layers.13.mlp.down_proj.weight",)
    assert rule.kind == "column"


def test_an_unknown_parameter_is_named_in_the_error() -> None:
    with pytest.raises(DataError, match=r"decoder\.layers\.0\.mlp\.router\.weight"):
        LAYOUT.rule("decoder.layers.0.mlp.router.weight")


@pytest.mark.parametrize("size", [1, 2])
def test_every_parameter_survives_the_way_to_megatron_shards_and_back(size: int) -> None:
    tensors: dict[str, torch.Tensor] = {}

    def read(name: str) -> torch.Tensor:
        rows = {"k_proj": 2, "v_proj": 2}.get(name.split(".")[-2], 4)
        shape = (rows,) if name.endswith("bias") or "norm" in name else (rows, 4)
        return tensors.setdefault(name, torch.randn(shape))

    back: dict[str, torch.Tensor] = {}
    names = [*OUTSIDE_LAYERS, *(f"decoder.layers.{layer}.{suffix}" for layer in range(2) for suffix in INSIDE_LAYERS)]
    for name in names:
        places = [Place(tensor_rank=rank, tensor_size=size) for rank in range(size)]
        back.update(to_huggingface(name, [to_megatron(name, read, LAYOUT, place) for place in places], LAYOUT))

    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_an_output_layer_that_is_the_embeddings_is_read_from_them() -> None:
    assert LAYOUT.rule("output_layer.weight").huggingface_names == ("model.embed_tokens.weight",)
    untied = replace(LAYOUT, tie_word_embeddings=False)
    assert untied.rule("output_layer.weight").huggingface_names == ("lm_head.weight",)


MIMO = {
    "model_type": "mimo",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 1,
    "num_nextn_predict_layers": 2,
}


def test_a_layer_for_prediction_has_megatron_s_embedding_on_the_other_side() -> None:
    layout, name = weight_layout(MIMO), "mtp.layers.1.eh_proj.weight"
    read = {"model.mtp_layers.1.input_proj.weight": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}

    shards = [to_megatron(name, read.__getitem__, layout, Place(tensor_rank=rank, tensor_size=2)) for rank in (0, 1)]

    assert [shard.tolist() for shard in shards] == [[[3, 4, 1, 2]], [[7, 8, 5, 6]]]
    assert {key: value.tolist() for key, value in to_huggingface(name, shards, layout)} == {
        "model.mtp_layers.1.input_proj.weight": [[1, 2, 3, 4], [5, 6, 7, 8]]
    }


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        ("enorm.weight", ["token_layernorm.weight"]),
        ("hnorm.weight", ["hidden_layernorm.weight"]),
        ("final_layernorm.weight", ["final_layernorm.weight"]),
        ("transformer_layer.self_attention.linear_qkv.bias", [f"self_attn.{x}_proj.bias" for x in "qkv"]),
        ("transformer_layer.mlp.linear_fc1.layer_norm_weight", ["post_attention_layernorm.weight"]),
    ],
)
def test_what_is_in_a_layer_for_prediction_keeps_the_layer_s_own_number(inside: str, names: list[str]) -> None:
    rule = weight_layout(MIMO).rule(f"mtp.layers.1.{inside}", layer_offset=12)

    assert list(rule.huggingface_names) == [f"model.mtp_layers.1.{name}" for name in names]


def test_a_family_without_layers_for_prediction_knows_none() -> None:
    with pytest.raises(DataError, match=r"mtp\.layers\.0\.enorm\.weight"):
        weight_layout({**MIMO, "model_type": "qwen2"}).rule("mtp.layers.0.enorm.weight")


MIXTURE = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "decoder_sparse_step": 2,
}


@pytest.mark.parametrize("name", ["local_experts.1.linear_fc1.weight", "linear_fc1.weight1"])
def test_an_expert_on_a_later_rank_keeps_its_global_number(name: str) -> None:
    rule = weight_layout(MIXTURE).rule(f"decoder.layers.1.mlp.experts.{name}", layer_offset=2, expert_offset=4)

    prefix = "model.layers.3.mlp.experts.5"
    assert rule.huggingface_names == (f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight")
    assert (rule.kind, rule.is_expert) == ("gate_up", True)


def test_experts_are_cut_over_their_own_tensor_parallel_ranks() -> None:
    place = Place(tensor_rank=1, tensor_size=2, expert_tensor_size=1)
    down = {"model.layers.1.mlp.experts.0.down_proj.weight": torch.arange(4).reshape(1, 4)}

    name = "decoder.layers.1.mlp.experts.local_experts.0.linear_fc2.weight"

    assert to_megatron(name, down.__getitem__, weight_layout(MIXTURE), place).tolist() == [[0, 1, 2, 3]]


def test_the_config_says_which_layers_have_experts() -> None:
    layout, qwen3 = (
        weight_layout(MIXTURE),
        weight_layout({**MIXTURE, "model_type": "qwen3_moe", "mlp_only_layers": [3]}),
    )

    assert layout.experts is not None
    assert layout.experts.dense_layers == {0, 2}
    assert layout.experts.shared_intermediate_size == 40
    assert qwen3.experts is not None
    assert qwen3.experts.dense_layers == {0, 2, 3}
    assert weight_layout({**MIXTURE, "model_type": "llama"}).experts is None


def test_norms_that_transformer_engine_fuses_are_known_by_their_names_there() -> None:
    rule = LAYOUT.rule("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight")

    assert rule.huggingface_names == ("model.layers.0.input_layernorm.weight",)


def test_the_layout_falls_back_to_what_the_config_leaves_out() -> None:
    layout = weight_layout({"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32})

    assert (layout.num_query_groups, layout.kv_channels, layout.tie_word_embeddings) == (4, 8, False)


def test_an_unsupported_model_type_is_refused_with_the_list(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))

    with pytest.raises(DataError) as error:
        read_huggingface_config(tmp_path)

    assert "'gpt2'" in error.value.message
    assert error.value.hint is not None
    assert "llama, mimo, mistral, qwen2, qwen2_moe, qwen3, qwen3_moe" in error.value.hint


def test_tensors_are_read_from_the_files_that_the_index_lists(tmp_path: Path) -> None:
    save_file({"a": torch.tensor([1.0])}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.tensor([2.0])}, tmp_path / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    with HuggingFaceReader(tmp_path) as reader:
        assert reader.names() == {"a", "b"}
        assert reader.read("b").tolist() == [2.0]
        with pytest.raises(DataError, match="no tensor c"):
            reader.read("c")


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"neither model\.safetensors nor"):
        HuggingFaceReader(tmp_path)
