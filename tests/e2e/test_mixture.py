"""A run of a mixture of experts, by the command line and with a real engine that says which experts it chose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import read_config
from tests.e2e.runs import new_run
from tests.e2e.test_algorithms import contents, metric
from tests.e2e.test_pipeline import shell
from tests.fixtures.tiny_model import make_tiny_model

pytestmark = pytest.mark.slow
ITERATIONS = 3
LAYERS, CHOSEN = 2, 2


def low_ids(args: Any, sample: Sample) -> float:
    """The share of the response's tokens whose id is below 256, which half of all are."""
    return float(np.mean(np.array(sample.tokens[-sample.response_length :]) < 256))


def test_a_mixture_of_experts_learns_with_the_experts_that_its_engine_chose(tiny_prompts: Path, tmp_path: Path) -> None:
    run = new_run(
        tmp_path / "run",
        make_tiny_model(tmp_path / "model", family="qwen3_moe"),
        tiny_prompts,
        engine=None,
        use_rollout_routing_replay=True,
        custom_rm_path="tests.e2e.test_mixture.low_ids",
        rollout_shards=1,
        n_samples_per_prompt=4,
        keep_weights=ITERATIONS + 1,
        lr=1e-2,
    )

    done = shell(f"slime-stages iter --run {run.root} --n {ITERATIONS}")

    assert done.returncode == 0, done.stderr
    assert max(metric(run, "train/probs_diff")) < 1e-4
    assert len(set(contents(run, ITERATIONS))) == ITERATIONS
    check_first_iteration(run)


def check_first_iteration(run: RunDir) -> None:
    """Experts are those of the trainer, and what had a higher reward than its siblings became likelier."""
    samples = read_samples(run.shard_path("rollout", 0, 0, 1))
    before, chosen = scored(run, 0, samples)
    after, _ = scored(run, 1, samples)

    said = [sample.rollout_routed_experts for sample in samples]
    assert all(np.array_equal(one, other) for one, other in zip(said, chosen, strict=True))
    advantages = pq.read_table(run.train_samples_path(0))["advantage"].to_numpy()
    gains = np.array([(new - old).mean() for new, old in zip(after, before, strict=True)])
    assert float((advantages * gains).mean()) > 0.05, gains


def scored(run: RunDir, version: int, samples: list[Sample]) -> tuple[list[Any], list[Any]]:
    """By the trainer with the weights of a version: each sample's log-probs, and where its tokens go."""
    from stages.train.megatron.packing import PackedSample, pack_samples
    from stages.train.megatron.step import Trainer
    from stages.train.policy import trainer_settings

    trainer = Trainer(run.weights_path(version), trainer_settings(read_config(run, 0)))
    packed = [PackedSample(tokens=np.asarray(s.tokens, np.int64), response_length=s.response_length) for s in samples]
    [together], [experts] = trainer.log_probs_and_experts([pack_samples(packed)])
    log_probs = np.split(together.numpy(), np.cumsum([s.response_length for s in samples])[:-1])
    return log_probs, [rows.reshape(len(rows), LAYERS, CHOSEN) for rows in experts]
