"""What training needs of earlier iterations lies in the run: references, critics, and what is made again from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slime_stages.launch.iterate import retain
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from slime_stages.weights.checkpoints import complete_iterations, critic_checkpoints
from tests.fakes.rollouts import fake_rollout
from tests.fixtures.tiny_model import make_tiny_model
from tests.stages.train.attempts import Attempt, outcome
from tests.stages.train.small_runs import make, run_to_train


def trained(run: RunDir, iteration: int) -> Manifest:
    if iteration:
        fake_rollout(run, iteration)
        make(run, "reward", iteration, shard=0)
    make(run, "train", iteration)
    make(run, "sync", iteration)
    retain(run, iteration)
    return read_manifest(run.manifest_path("train", iteration))


@pytest.mark.slow
def test_the_policy_becomes_the_reference_and_its_checkpoint_is_kept_for_that(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    flags = {"use_kl_loss": True, "kl_loss_type": "k3", "ref_update_interval": 2, "keep_checkpoints": 1}
    run = run_to_train(tmp_path / "run", tiny_model, tiny_prompts, global_batch_size=12, **flags)

    kl = [trained(run, iteration).metrics["train/kl_loss"] for iteration in range(4)]

    assert all(value is not None for value in kl)
    assert [abs(value or 0) < 1e-9 for value in kl] == [True, False, True, False]
    assert complete_iterations(run.checkpoints_path) == [4]
    assert (run.checkpoints_path / "iter_0000004").exists()


@pytest.mark.slow
def test_a_critic_has_checkpoints_of_its_own_and_training_is_made_again_from_them(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    run = run_to_train(tmp_path / "run", tiny_model, tiny_prompts, advantage_estimator="ppo", num_critic_only_steps=1)

    first, second = trained(run, 0), trained(run, 1)

    assert "train/loss" not in first.metrics
    assert first.metrics["train/steps"] == 0.0
    assert second.metrics["train/steps"] == 3.0
    with run.metrics_path("train").open() as lines:
        figures = [json.loads(line) for line in lines]
    assert all(line["perf/actor_train_tok_per_s"] > 0 and line["perf/actor_train_tflops"] > 0 for line in figures)
    for manifest in (first, second):
        assert (manifest.metrics["train/critic-value_loss"] or 0) > 0
    assert complete_iterations(critic_checkpoints(run.checkpoints_path)) == [1, 2]
    again = StageCall(stage="train", run=run.root, iteration=1, force=True)
    assert outcome(Attempt(call=again, log=run.root.with_suffix(".log"))) == 0
    repeated = read_manifest(run.manifest_path("train", 1))
    assert (repeated.content, repeated.outputs["critic_content"]) == (second.content, second.outputs["critic_content"])


@pytest.mark.slow
def test_on_policy_distillation_brings_the_policy_nearer_to_its_teacher(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    run = run_to_train(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        rollout_batch_size=16,
        global_batch_size=32,
        custom_rm_path="tests.stages.train.rewards.nothing",
        use_opd=True,
        opd_type="megatron",
        opd_teacher_load=str(make_tiny_model(tmp_path / "teacher", seed=11)),
        lr=1e-3,
    )

    gaps = [trained(run, iteration).metrics["rollout/opd_reverse_kl"] or 0.0 for iteration in range(4)]

    assert gaps[0] > 0
    assert max(gaps[1:]) < gaps[0]


@pytest.mark.slow
def test_a_hook_that_takes_all_advantages_away_leaves_the_policy_as_it_was(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    hook = {"rollout_data_postprocess_path": "tests.stages.train.hooks_under_test.without_advantages"}
    moved = []
    for name, flags in {"plain": {}, "hooked": hook}.items():
        run = run_to_train(tmp_path / name, tiny_model, tiny_prompts, weight_decay=0.0, **flags)
        norm = trained(run, 0).metrics["train/grad_norm"]
        before, after = (load_file(run.weights_path(version) / "model.safetensors") for version in (0, 1))
        moved.append((norm != 0, any(not torch.equal(before[key], after[key]) for key in before)))

    assert moved == [(True, True), (False, False)]
