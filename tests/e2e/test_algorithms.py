"""A whole run of PPO, by the command line and with a real engine, in which what is to move does move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine
from slime_stages.weights.checkpoints import complete_iterations, critic_checkpoints
from tests.e2e.runs import new_run
from tests.e2e.test_pipeline import shell

pytestmark = pytest.mark.slow


def one(args: Any, sample: Sample) -> float:
    return 1.0


def metric(run: RunDir, name: str) -> list[float]:
    lines = [json.loads(line) for line in run.metrics_path("train").read_text().splitlines()]
    return [line[name] for line in lines]


def contents(run: RunDir, count: int) -> list[str]:
    """Digests of the policy after each iteration."""
    return [read_manifest(run.manifest_path("train", iteration)).content for iteration in range(count)]


def test_ppo_s_critic_learns_what_rewards_come_and_its_policy_stands_still_until_then(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=engine,
        advantage_estimator="ppo",
        num_critic_only_steps=1,
        global_batch_size=4,
        custom_rm_path="tests.e2e.test_algorithms.one",
        lr=1e-2,
    )

    done = shell(f"slime-stages iter --run {run.root} --n 3")

    assert done.returncode == 0, done.stderr
    losses = metric(run, "train/critic-value_loss")
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    first, second, third = contents(run, 3)
    assert metric(run, "train/steps") == [0.0, 2.0, 2.0]
    assert len({first, second, third}) == 3
    assert complete_iterations(critic_checkpoints(run.checkpoints_path)) == [2, 3]
