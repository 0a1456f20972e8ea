"""Engine, transformers and trainer agree on the same tokens; so do one trainer process and several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall, read_config
from tests.e2e.runs import manifests, new_run, run_iteration
from tests.e2e.stage_calls import Forker
from tests.fixtures.tiny_model import make_tiny_model

TOLERANCE = 1e-4
LEARNING_RATE = 1e-3
"""The first step of Adam moves a weight by so much, whatever its gradient: the sign of a tiny one is noise."""
MEANS = ("advantage", "log_prob_gap", "entropy", "clip_share", "trained_tokens", "raw_reward")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_engine_transformers_and_trainer_give_the_sampled_tokens_the_same_log_probs(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path, temperature: float
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, rollout_temperature=temperature)
    ensure_plan(run, 0)
    outcome = forker.run(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
    assert outcome.result is not None
    samples = read_samples(run.shard_path("rollout", 0, 0, 2))

    said = [np.asarray(sample.rollout_log_probs) for sample in samples]
    by_transformers = log_probs_of_transformers(tiny_model, samples, temperature)
    by_trainer = log_probs_of_trainer(run, samples)

    assert [len(values) for values in said] == [6, 6, 6, 6]
    assert largest_gap(said, by_transformers) < TOLERANCE
    assert largest_gap(said, by_trainer) < TOLERANCE
    assert largest_gap(by_transformers, by_trainer) < TOLERANCE


@pytest.mark.slow
def test_engine_transformers_and_trainer_agree_on_a_mixture_of_experts(
    tiny_prompts: Path, forker: Forker, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", family="qwen3_moe")
    with Engine(model, "0", log=tmp_path / "engine.log") as engine:
        run = new_run(tmp_path / "run", model, tiny_prompts, engine=engine)
        ensure_plan(run, 0)
        assert forker.run(StageCall(stage="rollout", run=run.root, iteration=0, shard=0)).result is not None
    samples = read_samples(run.shard_path("rollout", 0, 0, 2))

    said = [np.asarray(sample.rollout_log_probs) for sample in samples]
    assert largest_gap(said, log_probs_of_transformers(model, samples, 1.0)) < TOLERANCE
    assert largest_gap(said, log_probs_of_trainer(run, samples)) < TOLERANCE


@pytest.mark.parametrize("tensor_parallel", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_two_trainer_processes_do_what_one_does(
    finished: RunDir,
    tiny_model: Path,
    tiny_prompts: Path,
    engine: Engine,
    forker: Forker,
    tmp_path: Path,
    tensor_parallel: int,
) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=engine,
        actor_num_gpus_per_node=2,
        tensor_model_parallel_size=tensor_parallel,
    )

    run_iteration(run, 0, forker)

    one, two = (pq.read_table(each.train_samples_path(0)).to_pydict() for each in (finished, run))
    for name in MEANS:
        assert two[name] == pytest.approx(one[name], abs=1e-5), name
    trained = [manifests(each)["iterations/000000/train/manifest.json"].metrics for each in (finished, run)]
    assert trained[1].keys() == trained[0].keys()
    assert trained[1] == pytest.approx(trained[0], abs=1e-5)
    assert largest_gap(*(weights_of(each.weights_path(1)) for each in (finished, run))) < LEARNING_RATE / 10


def log_probs_of_transformers(model_folder: Path, samples: list[Sample], temperature: float) -> list[Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    found = []
    for sample in samples:
        count = sample.response_length
        with torch.no_grad():
            logits = model(torch.tensor([sample.tokens])).logits[0, -count - 1 : -1] / temperature
        chosen = torch.tensor(sample.tokens[-count:])[:, None]
        found.append(logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy())
    return found


def log_probs_of_trainer(run: RunDir, samples: list[Sample]) -> list[Any]:
    """By the trainer that the train stage would start for the run."""
    from stages.train.megatron.packing import PackedSample, pack_samples
    from stages.train.megatron.step import Trainer
    from stages.train.policy import trainer_settings

    trainer = Trainer(run.weights_path(0), trainer_settings(read_config(run, 0)))
    packed = [PackedSample(tokens=np.asarray(s.tokens, np.int64), response_length=s.response_length) for s in samples]
    [together] = trainer.log_probs([pack_samples(packed)])
    return np.split(together.numpy(), np.cumsum([s.response_length for s in samples])[:-1])


def weights_of(folder: Path) -> list[Any]:
    from safetensors.numpy import load_file

    return [tensor for _, tensor in sorted(load_file(folder / "model.safetensors").items())]


def largest_gap(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
