"""What stands in for SGLang's kernels of a CPU, on numbers that a hand can follow."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from slime_stages.serving.launch import STAND_INS

NONE = -1


@functools.cache
def kernels(name: str) -> ModuleType:
    """A module of the stand-in package, which no other test of this process shall find installed."""
    path = STAND_INS / "sgl_kernel" / "sgl_kernel" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"stand_in_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(count: int, nodes: int) -> dict[str, torch.Tensor]:
    """Room for the description of `count` trees."""
    names = ("node_indices", "first_children", "next_siblings")
    return {
        "positions": torch.zeros(count * nodes, dtype=torch.long),
        **{name: torch.zeros(count, nodes, dtype=torch.long) for name in names},
    }


#        0           Two drafts that begin alike, 1 3 and 1 4, beside a third, 2.
#      1   2
#     3 4
BRANCHED = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]).bool()
CHAIN = torch.ones(5, 5).tril().bool()


def test_a_tree_that_is_known_by_its_mask_gets_positions_and_links() -> None:
    out = described(2, 5)

    kernels("speculative").reconstruct_indices_from_tree_mask(
        torch.stack([BRANCHED, CHAIN]).flatten(), torch.tensor([10, 20]), batch_size=2, node_count=5, **out
    )

    assert out["positions"].tolist() == [10, 11, 11, 12, 12, 20, 21, 22, 23, 24]
    assert out["node_indices"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert out["first_children"].tolist() == [[1, 3, NONE, NONE, NONE], [1, 2, 3, 4, NONE]]
    assert out["next_siblings"].tolist() == [[NONE, 2, NONE, 4, NONE], [NONE] * 5]


def test_a_tree_is_built_of_the_candidates_that_were_selected() -> None:
    """Two each step: 0 and 1 after the certain token, 2 and 3 after the one, 4 and 5 after the other."""
    out, mask = described(1, 5), torch.zeros(25, dtype=torch.bool)

    kernels("speculative").build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([[0, 1, 2, 3]]),
        torch.tensor([10]),
        mask,
        topk=2,
        depth=2,
        node_count=5,
        mask_mode=1,
        **out,
    )

    assert torch.equal(mask.view(5, 5), BRANCHED)
    assert out["positions"].tolist() == [10, 11, 11, 12, 12]
    assert out["first_children"].tolist() == [[1, 3, NONE, NONE, NONE]]
    assert out["next_siblings"].tolist() == [[NONE, 2, NONE, 4, NONE]]


@pytest.mark.parametrize(
    ("chosen", "walked", "predicted"),
    [
        ([7, 9, 0, 0, 6], [0, 1, 4], {0: 7, 1: 9, 4: 6}),  # 7, then 9 of two, and 6 behind them
        ([7, 5, 0, 0, 0], [0, 1], {0: 7, 1: 5}),  # 7, then none of two
        ([8, 0, 3, 0, 0], [0, 2], {0: 8, 2: 3}),
        ([6, 0, 0, 0, 0], [0], {0: 6}),
    ],
)
def test_a_draft_is_kept_as_far_as_the_model_chose_its_tokens(
    chosen: list[int], walked: list[int], predicted: dict[int, int]
) -> None:
    links = described(1, 5)
    kernels("speculative").reconstruct_indices_from_tree_mask(
        BRANCHED.flatten(), torch.tensor([10]), batch_size=1, node_count=5, **links
    )
    predicts, accepted = torch.zeros(5, dtype=torch.int32), torch.full((1, 3), NONE, dtype=torch.int32)
    counts = torch.zeros(1, dtype=torch.int32)

    kernels("speculative").verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=torch.tensor([[1, 7, 8, 4, 9]]),
        retrive_index=links["node_indices"],
        retrive_next_token=links["first_children"],
        retrive_next_sibling=links["next_siblings"],
        target_predict=torch.tensor([chosen]),
    )

    assert accepted[0].tolist() == walked + [NONE] * (3 - len(walked))
    assert counts.tolist() == [len(walked) - 1]
    assert {node: int(predicts[node]) for node in walked} == predicted


@pytest.mark.slow
def test_trees_are_those_of_a_gpu() -> None:
    folders = os.pathsep.join(str(STAND_INS / name) for name in ("torchvision", "sgl_kernel"))
    environment = {"PYTHONPATH": folders, "TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    script = Path(__file__).with_name("compare_trees.py")

    subprocess.run([sys.executable, str(script)], env=os.environ | environment, check=True)


def test_slots_are_entered_into_the_table_and_read_from_it() -> None:
    slots, table, requests = kernels("slots"), torch.zeros(3, 8, dtype=torch.int32), torch.tensor([2, 0])

    slots.assign_req_to_token_pool_cpu(
        requests, table, torch.tensor([1, 0]), torch.tensor([3, 4]), torch.arange(50, 56), 8
    )
    assert table.tolist() == [[52, 53, 54, 55, 0, 0, 0, 0], [0] * 8, [0, 50, 51, 0, 0, 0, 0, 0]]

    read = torch.zeros(3, dtype=torch.long)
    slots.assign_extend_cache_locs_cpu(requests, table, torch.tensor([2, 0]), torch.tensor([3, 2]), read, 8)
    assert read.tolist() == [51, 52, 53]

    behind = torch.zeros(4, dtype=torch.long)
    slots.assign_draft_cache_locs_contiguous_cpu(requests, table, torch.tensor([1, 2]), behind, 8, 1, 2)
    assert behind.tolist() == [50, 51, 54, 55]


def test_each_draft_of_a_sequence_has_a_row_of_its_own() -> None:
    table = torch.tensor([[0] * 8, [40, 41, 42, 50, 51, 60, 61, 0]], dtype=torch.int32)

    found = kernels("slots").build_draft_decode_metadata_cpu(table, torch.tensor([1]), torch.tensor([3]), 2, 2, 8)

    assert found[:, :5].tolist() == [[40, 41, 42, 50, 51], [40, 41, 42, 60, 61]]


def test_what_was_accepted_moves_to_the_front() -> None:
    slots = kernels("slots")
    bonus, accepted = torch.zeros(2, dtype=torch.int32), torch.zeros(6, dtype=torch.long)

    slots.fill_bonus_tokens_cpu(torch.tensor([[7, 8, 0], [9, 0, 0]]), torch.tensor([2, 1]), bonus, 3)
    slots.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32), torch.tensor([90, 91, 92, 93, 94, 95]), accepted
    )

    assert bonus.tolist() == [8, 9]
    assert accepted.tolist() == [90, 92, 93, 0, 0, 0]


def test_rows_of_every_layer_are_copied_as_they_were_before() -> None:
    layers = [torch.arange(10.0).view(5, 2).clone(), torch.arange(15.0).view(5, 3).clone()]

    kernels("slots").copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer.stride(0) * 4 for layer in layers]),
        torch.tensor([1, 2]),
        torch.tensor([2, 4]),
    )

    assert layers[0][:, 0].tolist() == [0.0, 4.0, 8.0, 6.0, 8.0]
    assert layers[1][:, 0].tolist() == [0.0, 6.0, 12.0, 9.0, 12.0]


def test_attention_by_length_has_the_bits_of_attention_one_by_one() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([5, 9, 5, 7, 9, 9])
    query, output = torch.randn(6, 4, 16), torch.empty(6, 4, 16)
    keys, values = torch.randn(100, 2, 16), torch.randn(100, 2, 16)
    table, rows = torch.randint(0, 100, (6, 12)), torch.tensor([3, 1, 0, 2, 5, 4])

    kernels("attention").attend_by_length(query, output, keys, values, table, rows, lengths, 0.25)

    for token, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots = table[row, :length]
        assert torch.equal(output[token], alone(query[token], keys[slots], values[slots]))


def test_a_node_of_a_tree_attends_to_its_prefix_and_its_ancestors_as_in_a_decode() -> None:
    torch.manual_seed(0)
    table = torch.randperm(40)[:24].view(2, 12)
    query, output = torch.randn(10, 4, 16), torch.empty(10, 4, 16)
    keys, values = torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    trees, lengths = torch.stack([BRANCHED, CHAIN]), torch.tensor([8, 12])

    extend(query, output, keys, values, table, lengths, torch.tensor([5, 5]), tree=trees.flatten())

    for node in range(10):
        tree, row = divmod(node, 5)
        prefix = int(lengths[tree]) - 5
        slots = table[tree, [*range(prefix), *(prefix + i for i in range(5) if trees[tree, row, i])]]
        assert torch.equal(output[node], alone(query[node], keys[slots], values[slots]))


def test_a_prompt_has_the_same_bits_with_and_without_its_prefix_in_the_cache() -> None:
    torch.manual_seed(0)
    table, query = torch.randperm(40)[:9].view(1, 9), torch.randn(9, 4, 16)
    keys, values, lengths = torch.randn(40, 2, 16), torch.randn(40, 2, 16), torch.tensor([9])
    whole, rest = torch.empty(9, 4, 16), torch.empty(4, 4, 16)

    extend(query, whole, keys, values, table, lengths, torch.tensor([9]))
    extend(query[5:], rest, keys, values, table, lengths, torch.tensor([4]))

    assert torch.equal(whole[5:], rest)
    slots = table[0, :7]
    assert torch.allclose(whole[6], alone(query[6], keys[slots], values[slots]), atol=1e-6)


def test_attention_that_is_not_plain_is_refused_rather_than_wrong() -> None:
    tokens = torch.zeros(1, 4, 16)
    table, one = torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])

    with pytest.raises(NotImplementedError, match=r"window=4096"):
        extend(tokens, tokens, tokens, tokens, table, one, one, window=4096)


def alone(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[None, :, None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], enable_gqa=True, scale=0.25
    )
    return attended[0, :, 0]


def extend(
    query: torch.Tensor,
    output: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    new_lengths: torch.Tensor,
    *,
    tree: torch.Tensor | None = None,
    window: int = 0,
) -> None:
    count = len(lengths)
    starts = new_lengths.cumsum(0) - new_lengths
    kernels("attention").extend_attention_cpu(
        query,
        None,
        None,
        output,
        keys,
        values,
        1.0,
        1.0,
        table,
        torch.arange(count),
        lengths,
        new_lengths,
        starts,
        int(new_lengths.max()),
        0.25,
        0.0,
        False,
        window,
        None,
        None,
        tree,
        True,
    )
