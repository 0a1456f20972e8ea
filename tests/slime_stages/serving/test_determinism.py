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


async def test_a_sample_is_the_same_beside_requests_that_are_sampled_otherwise(client: EngineClient) -> None:
    async def sampled(number: int, sampler: dict[str, float], beside: str) -> GenerateOutput:
        params = {"max_new_tokens": 16, "ignore_eos": True, "sampling_seed": 50 + number, **sampler}
        return await client.generate([5, 6, 7, 8 + number], params, rid=f"sampler-{number}-{beside}")

    samplers = [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}]
    alone = [await sampled(number, sampler, "alone") for number, sampler in enumerate(samplers)]
    together = await asyncio.gather(*(sampled(number, sampler, "others") for number, sampler in enumerate(samplers)))

    assert [output.output_ids for output in together] == [output.output_ids for output in alone]
    assert [output.output_log_probs for output in together] == [output.output_log_probs for output in alone]


def test_a_filtered_draw_is_among_what_is_left_and_has_the_noise_of_an_unfiltered_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    noise = torch.tensor([0.0, 3.0, 0.0, 1.0])  # token 1 is lucky, token 3 a little
    sampler = ModuleType("sglang.srt.layers.sampler")
    sampler.sampling_from_probs_torch = lambda left, *_: (left.log() + noise).argmax(-1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.sampler", sampler)
    probabilities = torch.tensor([[0.4, 0.1, 0.3, 0.2]] * 4)
    top_ks, top_ps = torch.tensor([4, 3, 4, 4]), torch.tensor([1.0, 1.0, 0.75, 0.3])
    min_ps, seeds = torch.zeros(4), torch.zeros(4, dtype=torch.int64)

    drawn = load_plugin().draw_by_token(None, probabilities, top_ks, top_ps, min_ps, False, seeds, seeds)
    with_min_p = load_plugin().draw_by_token(
        None, probabilities, top_ks, torch.ones(4), torch.full((4,), 0.6), True, seeds, seeds
    )

    assert drawn.tolist() == [1, 3, 3, 0]  # 1 of all four; 3 of 0, 2, 3, and again; 0 of 0 alone
    assert with_min_p.tolist() == [0, 0, 0, 0]  # of 0 and 2, whose noise is the same
