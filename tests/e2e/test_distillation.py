"""On-policy distillation by the command line, as somebody coming from slime types it, from teachers of both types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slime_stages.data.sample_table import read_samples
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from tests.e2e.runs import at_version_0, new_run
from tests.e2e.test_algorithms import metric
from tests.e2e.test_carried import transformers_log_probs
from tests.e2e.test_pipeline import shell

pytestmark = pytest.mark.slow
ITERATIONS = 8
ENGINES = """
sglang:
  - {{name: actor, server_groups: [{{worker_type: regular, num_gpus: 1}}]}}
  - {{name: teacher, model_path: {teacher}, server_groups: [{{worker_type: regular, num_gpus: 1}}]}}
"""
HOOKS = "slime.rollout.on_policy_distillation"
FLAGS = """
--hf-checkpoint {model} --prompt-data {prompts} --input-key prompt --label-key label --apply-chat-template
--rollout-batch-size 32 --n-samples-per-prompt 4 --rollout-max-response-len 6 --rollout-shards 1
--global-batch-size 128 --use-dynamic-batch-size --max-tokens-per-gpu 1024 --lr 1e-2
--advantage-estimator grpo --use-opd --opd-kl-coef 1.0 --rollout-external-engine-addrs {engine}
"""


@pytest.fixture(scope="module")
def teacher_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relative of the student: the same weights, with half of their deviation added as noise."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    shutil.copytree(tiny_model, folder)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(folder / "model.safetensors")
    moved = {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def teacher(teacher_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(teacher_model, "0", log=tmp_path_factory.mktemp("teacher") / "engine.log") as engine:
        yield engine


def test_a_student_becomes_like_its_teacher_on_the_same_way_whoever_has_the_teacher(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, teacher: Engine, tmp_path: Path
) -> None:
    by_engine = (
        f"--opd-type sglang --rm-url {teacher.url}/generate --custom-rm-path {HOOKS}.reward_func"
        f" --custom-reward-post-process-path {HOOKS}.post_process_rewards"
    )
    by_trainer = (
        f"--opd-type megatron --opd-teacher-load {teacher.model} --custom-rm-path tests.stages.train.rewards.nothing"
    )

    asked = distilled(tmp_path / "asked", tiny_model, tiny_prompts, engine, f"--n {ITERATIONS} {by_engine}")
    beside = distilled(tmp_path / "beside", tiny_model, tiny_prompts, at_version_0(engine), f"--n 3 {by_trainer}")

    check_progress(asked, teacher.model)
    gaps = [metric(run, "rollout/opd_reverse_kl")[:3] for run in (asked, beside)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-3)  # later on a rounding error may change a token
    samples, said = samples_of(asked, 0), teacher_log_probs(asked, 0)
    assert [len(values) for values in said] == [sample.response_length for sample in samples]
    for sample, values in zip(samples[:4], said, strict=False):
        assert values == pytest.approx(transformers_log_probs(teacher.model, sample).tolist(), abs=1e-3)


def test_a_teacher_among_the_engines_of_a_rollout_is_asked_by_a_hook(
    tiny_model: Path, tiny_prompts: Path, teacher_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(ENGINES.format(teacher=teacher_model))
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=None,
        rollout_shards=1,
        sglang_config=str(tmp_path / "models.yaml"),
        rollout_sample_hook_path=["slime_stages.compat.distillation.ask_teacher"],
        use_opd=True,
        opd_type="sglang",
    )

    done = shell(f"slime-stages iter --run {run.root} --n 2")

    assert done.returncode == 0, done.stderr
    for sample in (samples_of(run, 0)[0], samples_of(run, 1)[0]):
        expected = transformers_log_probs(teacher_model, sample).tolist()
        assert sample.teacher_log_probs == pytest.approx(expected, abs=1e-3)
    assert min(metric(run, "rollout/opd_reverse_kl")) > 0


def distilled(folder: Path, model: Path, prompts: Path, engine: Engine, flags: str) -> RunDir:
    """A run of a few iterations that began with these flags alone."""
    given = FLAGS.format(model=model, prompts=prompts, engine=engine.url.removeprefix("http://"))
    done = shell(f"slime-stages iter --run {folder} {' '.join(given.split())} {flags}")
    assert done.returncode == 0, done.stderr
    return RunDir(folder)


def check_progress(run: RunDir, teacher: Path) -> None:
    """The student writes more and more what the teacher would write, and nothing else moves it: rewards are 0."""
    gaps = metric(run, "rollout/opd_reverse_kl")
    likely = [likelihood(teacher, samples_of(run, iteration)) for iteration in (0, ITERATIONS - 1)]
    print(f"opd_reverse_kl {np.round(gaps, 3)}, log-probs under the teacher {np.round(likely, 3)}")
    assert metric(run, "rollout/rewards") == [0.0] * ITERATIONS
    assert metric(run, "rollout/advantages") == pytest.approx([-gap for gap in gaps], abs=1e-5)
    assert gaps[-1] < 0.7 * gaps[0]
    assert likely[-1] > likely[0] + 0.3


def samples_of(run: RunDir, iteration: int) -> list[Sample]:
    return read_samples(run.shard_path("rollout", iteration, 0, 1))


def teacher_log_probs(run: RunDir, iteration: int) -> list[list[float]]:
    """Of each sample's response, from the reward shard."""
    parts = read_shard(run.shard_path("reward", iteration, 0, 1), REWARD)["reward_parts"].to_pylist()
    return [[entry[0] for entry in json.loads(part)["meta_info"]["input_token_logprobs"][1:]] for part in parts]


def likelihood(model: Path, samples: list[Sample]) -> float:
    """Mean log-prob of a response's token under a model."""
    return float(np.mean(np.concatenate([transformers_log_probs(model, sample) for sample in samples])))
