"""On a CPU a sample is a function of its prompt and its seed, whatever else the engine does meanwhile."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import subprocess
import sys
from types import ModuleType

import pytest

from slime_stages.serving.client import EngineClient, GenerateOutput
from slime_stages.serving.engine import Engine
from slime_stages.serving.launch import STAND_INS

COMPARE_WITH_TRITON = """
import importlib.util, torch, sgl_kernel
folder = importlib.util.find_spec("sglang").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("murmur", folder + "/kernels/ops/sampling/murmur_hash.py")
murmur = importlib.util.module_from_spec(spec)
spec.loader.exec_module(murmur)
seeds = torch.tensor([0, 1, 2**63 - 1, 123456789012345]).to(torch.uint64)
positions, columns = torch.tensor([0, 7, 3, 99]), torch.arange(1500)
expected = torch.empty(4, 1500, dtype=torch.uint32)
murmur.murmur_hash32_kernel[(4, 2)](seeds, positions, columns, expected, 4, 1500, BLOCK_SIZE=1024)
found = torch.ops.sgl_kernel.murmur_hash32_cpu.default(seeds, positions, columns)
assert found.tolist() == expected.tolist()
"""


def load_plugin() -> ModuleType:
    path = STAND_INS / "plugin" / "slime_stages_cpu.py"
    spec = importlib.util.spec_from_file_location("slime_stages_cpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def ask(client: EngineClient, order: list[int], run: int, spread_seconds: float) -> dict[int, GenerateOutput]:
    """64 samples, 8 of each prompt, sent in `order` over `spread_seconds`."""
    source = random.Random(run)

    async def one(sample: int) -> GenerateOutput:
        await asyncio.sleep(source.random() * spread_seconds)
        words = random.Random(sample // 8)
        prompt = [words.randrange(3, 500) for _ in range(5 + 4 * (sample // 8))]
        params = {"temperature": 1.0, "max_new_tokens": 16, "ignore_eos": True, "sampling_seed": 1000 + sample}
        return await client.generate(prompt, params, rid=f"determinism-{run}-{sample}")

    return dict(zip(order, await asyncio.gather(*(one(sample) for sample in order)), strict=True))


async def test_64_samples_are_the_same_in_any_order_of_arrival(client: EngineClient, engine: Engine) -> None:
    order = list(range(64))
    engine.flush_cache()
    first = await ask(client, order, run=0, spread_seconds=0)
    random.Random(1).shuffle(order)
    second = await ask(client, order, run=1, spread_seconds=1.5)

    for sample in range(64):
        assert second[sample].output_ids == first[sample].output_ids
        assert second[sample].output_log_probs == first[sample].output_log_probs  # to the last bit
    assert len({tuple(output.output_ids) for output in first.values()}) == 64


def test_the_seeded_hash_is_the_one_that_a_gpu_computes() -> None:
    environment = os.environ | {"PYTHONPATH": str(STAND_INS / "sgl_kernel"), "TRITON_INTERPRET": "1"}

    subprocess.run([sys.executable, "-c", COMPARE_WITH_TRITON], env=environment, check=True)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 63])
def test_a_row_of_a_padded_product_does_not_depend_on_the_others(count: int) -> None:
    import torch

    torch.manual_seed(0)
    rows, weight = torch.randn(64, 576), torch.randn(960, 576)
    linear = load_plugin().pad_rows(torch.nn.functional.linear)

    assert torch.equal(linear(rows[:count], weight), linear(rows, weight)[:count])


def test_attention_by_length_has_the_bits_of_attention_one_by_one() -> None:
    import torch

    torch.manual_seed(0)
    lengths = torch.tensor([5, 9, 5, 7, 9, 9])
    query, output = torch.randn(6, 4, 16), torch.empty(6, 4, 16)
    keys, values = torch.randn(100, 2, 16), torch.randn(100, 2, 16)
    req_to_token, requests = torch.randint(0, 100, (6, 12)), torch.tensor([3, 1, 0, 2, 5, 4])

    load_plugin().decode_by_length(
        None, None, query, output, keys, values, req_to_token, requests, lengths, None, scaling=0.25, enable_gqa=True
    )

    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots = req_to_token[request, :length]
        alone = torch.nn.functional.scaled_dot_product_attention(
            query[row][None, :, None],
            keys[slots].transpose(0, 1)[None],
            values[slots].transpose(0, 1)[None],
            enable_gqa=True,
            scale=0.25,
        )
        assert torch.equal(output[row], alone[0, :, 0])
