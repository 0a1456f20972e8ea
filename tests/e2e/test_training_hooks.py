"""The user's functions in training, as the command line takes them, in a run with a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from tests.e2e.runs import new_run
from tests.e2e.test_algorithms import metric
from tests.e2e.test_pipeline import shell

pytestmark = pytest.mark.slow
HERE = "tests.e2e.test_training_hooks"


def rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """As raw ones what was returned; to train on, 1 for every second sample."""
    return [float(sample.reward) for sample in samples], [float(sample.index % 2) for sample in samples]


def train_data(args: Any, samples: list[Any]) -> dict[str, Any]:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [float(sample.index % 2) for sample in samples],
        "rollout_ids": [sample.index for sample in samples],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
        "difficulty": [0.5] * len(samples),
    }


def loss(args: Any, batch: dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Any:
    """Likelier tokens where the reward is 1, and the column of `train_data` as a metric."""
    targets = torch.cat([t[-n:] for t, n in zip(batch["tokens"], batch["response_lengths"], strict=True)])
    weights = torch.cat([torch.full((n,), r) for n, r in zip(batch["response_lengths"], batch["rewards"], strict=True)])
    log_probs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    difficulty = torch.cat([torch.full((n,), batch["difficulty"][0]) for n in batch["response_lengths"]])
    return sum_of_sample_mean(-log_probs * weights), {"difficulty": sum_of_sample_mean(difficulty)}


def before_step(args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Nothing is learned in the iterations with an odd number."""
    if rollout_id % 2:
        for group in optimizer.param_groups:
            group["lr"] = group["weight_decay"] = 0.0


def has_moved(run: RunDir, version: int) -> bool:
    before, after = (load_file(run.weights_path(number) / "model.safetensors") for number in (version - 1, version))
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_rewards_data_loss_and_steps_may_be_the_users(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=engine,
        keep_weights=4,
        loss_type="custom_loss",
        custom_loss_function_path=f"{HERE}.loss",
        custom_reward_post_process_path=f"{HERE}.rewards",
        custom_convert_samples_to_train_data_path=f"{HERE}.train_data",
        custom_megatron_before_train_step_hook_path=f"{HERE}.before_step",
    )

    done = shell(f"slime-stages iter --run {run.root} --n 3")

    assert done.returncode == 0, done.stderr
    assert metric(run, "train/difficulty") == pytest.approx([0.5] * 3)
    assert metric(run, "rollout/rewards") == [0.5] * 3
    assert [has_moved(run, version) for version in (1, 2, 3)] == [True, False, True]
