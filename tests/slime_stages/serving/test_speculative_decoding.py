"""Speculative decoding with SGLang's own workers: the same samples and log-probs as without it, to the bit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.counters import SpecInfo
from slime_stages.data.sample_table import read_samples
from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.launch.plans import ensure_plan
from slime_stages.run.manifest import read_manifest
from slime_stages.sample import Sample
from slime_stages.serving.client import EngineClient, GenerateOutput
from slime_stages.serving.engine import Engine, EngineOptions
from slime_stages.stage import StageCall
from stages.rollout.run import run as run_rollout
from tests.e2e.runs import new_run
from tests.fixtures.tiny_model import VOCABULARY_SIZE, make_tiny_model

NODES = 6
"""Of a verified tree: the last token that is certain, and at most five that are drafted."""

NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NODES, "skip_tokenizer_init": True}
DRAFTED = {"speculative_algorithm": "STANDALONE", "skip_tokenizer_init": True}
CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 5},
]
LENGTH = 24


@pytest.fixture(scope="module")
def drafting(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Serves the tiny model as version 0, and drafts by what it has written before."""
    log = tmp_path_factory.mktemp("drafting") / "engine.log"
    with Engine(tiny_model, "0", log=log, options=EngineOptions(flags=NGRAM)) as engine:
        yield engine


@pytest.fixture
async def drafting_client(drafting: Engine) -> AsyncIterator[EngineClient]:
    async with client_of(drafting) as client:
        yield client


def client_of(engine: Engine) -> EngineClient:
    return EngineClient(engine.url, vocab_size=VOCABULARY_SIZE, timeout_seconds=120)


async def ask(client: EngineClient, *, prompts: list[list[int]] | None = None) -> list[GenerateOutput]:
    """16 samples at once, greedy ones and sampled ones in the same batches."""

    async def one(number: int) -> GenerateOutput:
        words = random.Random(number // 8)
        prompt = prompts[number] if prompts else [words.randrange(3, 500) for _ in range(6 + number // 8)]
        sampler = {**SAMPLERS[number % len(SAMPLERS)], "sampling_seed": 100 + number}
        params = {"max_new_tokens": LENGTH, "ignore_eos": True, **sampler}
        return await client.generate(prompt, params, rid=f"drafting-{number}-{bool(prompts)}")

    return await asyncio.gather(*(one(number) for number in range(16)))


def written(outputs: list[GenerateOutput]) -> list[tuple[list[int], list[float]]]:
    return [(output.output_ids, output.output_log_probs) for output in outputs]


def counted(outputs: list[GenerateOutput]) -> SpecInfo:
    info = SpecInfo()
    for output in outputs:
        info.add(output.meta_info)
    return info


async def test_drafts_change_no_token_and_no_log_prob(
    engine: Engine, drafting_client: EngineClient, client: EngineClient
) -> None:
    engine.flush_cache()  # a prefix of a longer prompt may have other bits
    for _ in range(2):  # the second time it has seen what it is to write
        drafted, plain = await ask(drafting_client), await ask(client)

        assert written(drafted) == written(plain)
    assert len({tuple(output.output_ids) for output in drafted}) > 8


async def test_counters_are_those_of_the_server(drafting_client: EngineClient) -> None:
    outputs = await ask(drafting_client)

    info = counted(outputs)
    histograms = [output.meta_info["spec_correct_drafts_histogram"] for output in outputs]
    assert info.spec_verify_ct == sum(map(sum, histograms))
    assert info.spec_draft_token_num == info.spec_verify_ct * (NODES - 1)
    assert info.spec_accept_token_num == sum(size * count for sizes in histograms for size, count in enumerate(sizes))
    assert info.completion_token_num == 16 * LENGTH
    assert 0.2 < info.spec_accept_rate < 1.0
    assert info.spec_accept_length == 16 * LENGTH / info.spec_verify_ct > 2.0


async def test_a_second_turn_finds_its_prefix_and_is_the_same(
    drafting_client: EngineClient, client: EngineClient
) -> None:
    words = random.Random(9)
    first = [[words.randrange(3, 500) for _ in range(12)] for _ in range(16)]
    turns = [
        [*prompt, *output.output_ids, 7, 8, 9]
        for prompt, output in zip(first, await ask(client, prompts=first), strict=True)
    ]
    await ask(drafting_client, prompts=first)

    drafted, plain = await ask(drafting_client, prompts=turns), await ask(client, prompts=turns)

    for turn, output, expected in zip(turns, drafted, plain, strict=True):
        assert output.output_ids == expected.output_ids
        assert output.output_log_probs == pytest.approx(expected.output_log_probs, abs=1e-5)
        # Ours are three, and the last one that it wrote may have been drafted and verified with others.
        assert output.meta_info["cached_tokens"] in (len(turn) - 4, len(turn) - 3)


async def test_new_weights_are_drafted_for_and_written_with(
    drafting: Engine, engine: Engine, drafting_client: EngineClient, client: EngineClient, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", seed=1)
    before = await ask(drafting_client)
    for each in (drafting, engine):
        await asyncio.to_thread(each.update_weights, other, "1")

    drafted, plain = await ask(drafting_client), await ask(client)
    for each in (drafting, engine):
        await asyncio.to_thread(each.update_weights, each.model, "0")

    assert written(drafted) == written(plain) != written(before)
    assert {output.weight_version for output in drafted} == {"1"}
    assert counted(drafted).spec_accept_token_num > 0
    assert written(await ask(drafting_client)) == written(before)


async def test_a_request_goes_on_drafting_under_weights_that_come_in_its_midst(
    drafting: Engine, drafting_client: EngineClient, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", seed=1)
    params = {"max_new_tokens": 300, "temperature": 1.0, "ignore_eos": True, "sampling_seed": 7}
    asked = asyncio.ensure_future(drafting_client.generate([5, 6, 7], params, rid="drafting-running"))
    while not await asyncio.to_thread(drafting.request_count):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    await asyncio.to_thread(drafting.update_running, other, "1")
    output = await asked
    await asyncio.to_thread(drafting.update_weights, drafting.model, "0")

    sample = Sample(tokens=[5, 6, 7])
    sample.append_response_tokens(
        None, tokens=output.output_ids, log_probs=output.output_log_probs, meta_info=output.meta_info
    )
    assert [span[0] for span in sample.metadata[SPANS_KEY]] == ["0", "1"]
    assert sample.response_length == len(sample.rollout_log_probs or []) == 300
    assert 0 < sample.spec_info.spec_verify_ct < 300


def test_a_rollout_is_the_same_and_its_samples_and_metrics_count_the_drafts(
    drafting: Engine, engine: Engine, tiny_prompts: Path, tmp_path: Path
) -> None:
    """Which settings say nothing of: the engines are somebody else's. Cold samples repeat themselves, as drafts do."""
    settings = {"rollout_shards": 1, "rollout_max_response_len": LENGTH, "rollout_temperature": 0.1}

    def roll(server: Engine, folder: Path) -> tuple[list[Sample], dict[str, float | None]]:
        run = new_run(folder, server.model, tiny_prompts, engine=server, **settings)
        ensure_plan(run, 0)
        path = run_rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
        server.update_weights(server.model, "0")
        return read_samples(path.with_suffix(".parquet")), read_manifest(path).metrics

    (drafted, metrics), (plain, metrics_without) = roll(drafting, tmp_path / "one"), roll(engine, tmp_path / "two")

    assert [sample.tokens for sample in drafted] == [sample.tokens for sample in plain]
    assert [sample.rollout_log_probs for sample in drafted] == [sample.rollout_log_probs for sample in plain]
    infos = [sample.spec_info for sample in drafted]
    assert all(info.spec_draft_token_num == info.spec_verify_ct * (NODES - 1) > 0 for info in infos)
    assert [info.completion_token_num for info in infos] == [sample.response_length for sample in drafted]
    accepted, verified = sum(info.spec_accept_token_num for info in infos), sum(info.spec_verify_ct for info in infos)
    assert accepted > 0
    assert metrics["rollout/spec_accept_rate"] == accepted / (verified * (NODES - 1))
    assert metrics["rollout/spec_accept_length"] == sum(sample.response_length for sample in drafted) / verified
    assert not [name for name in metrics_without if "spec_" in name]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
async def test_a_draft_model_changes_no_token_and_no_log_prob(
    engine: Engine, client: EngineClient, tmp_path: Path, shape: dict[str, int]
) -> None:
    engine.flush_cache()
    flags = {**DRAFTED, **shape, "speculative_draft_model_path": str(engine.model)}
    with Engine(engine.model, "0", log=tmp_path / "engine.log", options=EngineOptions(flags=flags)) as drafting:
        async with client_of(drafting) as drafting_client:
            drafted, plain = await ask(drafting_client), await ask(client)

    assert written(drafted) == written(plain)
    info = counted(drafted)
    assert info.spec_draft_token_num == info.spec_verify_ct * (shape["speculative_num_draft_tokens"] - 1)
    assert info.spec_accept_length > 1.2


@pytest.mark.slow
async def test_layers_of_the_model_itself_change_no_token_and_are_loaded_with_its_weights(tmp_path: Path) -> None:
    from tests.e2e.test_prediction import make_tiny_mimo

    model, other = make_tiny_mimo(tmp_path / "model"), make_tiny_mimo(tmp_path / "other", seed=1)
    shape = {"speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 2}
    with (
        Engine(model, "0", log=tmp_path / "plain.log") as plain,
        Engine(
            model,
            "0",
            log=tmp_path / "drafting.log",
            options=EngineOptions(flags={"speculative_algorithm": "NEXTN", **shape}),
        ) as drafting,
    ):
        async with client_of(plain) as plain_client, client_of(drafting) as drafting_client:
            for version, weights in enumerate((model, other)):
                before = draft_checksum(drafting)
                for each in (plain, drafting):
                    await asyncio.to_thread(each.update_weights, weights, str(version))

                drafted, expected = await ask(drafting_client), await ask(plain_client)

                assert written(drafted) == written(expected)
                assert counted(drafted).spec_verify_ct > 0
                assert (draft_checksum(drafting) == before) == (weights == model)


@pytest.mark.slow
async def test_what_is_loaded_into_an_engine_goes_into_its_draft_model_too(tiny_model: Path, tmp_path: Path) -> None:
    """Why `refuse_to_overwrite_draft` does."""
    flags = {**DRAFTED, **CHAIN, "speculative_draft_model_path": str(make_tiny_model(tmp_path / "draft", seed=2))}
    with Engine(tiny_model, "0", log=tmp_path / "engine.log", options=EngineOptions(flags=flags)) as engine:
        before = draft_checksum(engine)

        engine.update_weights(make_tiny_model(tmp_path / "other", seed=1), "1")

        assert draft_checksum(engine) != before


def draft_checksum(engine: Engine) -> str:
    """Of the weights that draft."""
    return str(engine.call("POST", "/weights_checker", {"action": "checksum", "selector": "draft"})["ranks"])


@pytest.mark.slow
async def test_samples_without_a_seed_follow_the_policy(tiny_model: Path, tmp_path: Path) -> None:
    """Of a token that is drawn from p, the log-prob is -H(p) on average."""
    flags = {**NGRAM, "enable_deterministic_inference": False}
    with Engine(tiny_model, "0", log=tmp_path / "engine.log", options=EngineOptions(flags=flags)) as engine:
        async with client_of(engine) as client:
            params = {"max_new_tokens": 8, "temperature": 0.7, "ignore_eos": True}
            asked = (client.generate([5, 6, 7], params, rid=f"unseeded-{number}") for number in range(256))
            outputs = await asyncio.gather(*asked)

    # The first token is drawn by the prefill, all others while drafts are verified.
    deviations, variances = await asyncio.to_thread(surprises, tiny_model, [5, 6, 7], outputs, temperature=0.7)
    assert len({tuple(output.output_ids) for output in outputs}) > 200
    assert abs(sum(deviations)) < 4 * sum(variances) ** 0.5


def surprises(
    model: Path, prompt: list[int], outputs: list[GenerateOutput], *, temperature: float
) -> tuple[list[float], list[float]]:
    """Of every token but the first of each output: its log-prob plus the entropy, and what the variance of that is."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor([[*prompt, *output.output_ids] for output in outputs])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(tokens).logits
    log_probs = torch.log_softmax(logits[:, len(prompt) : -1] / temperature, dim=-1)
    probs, drawn = log_probs.exp(), tokens[:, len(prompt) + 1 :, None]
    entropy = -(probs * log_probs).sum(-1)
    variance = (probs * log_probs**2).sum(-1) - entropy**2
    deviation = log_probs.gather(-1, drawn).squeeze(-1) + entropy
    return deviation.flatten().tolist(), variance.flatten().tolist()
