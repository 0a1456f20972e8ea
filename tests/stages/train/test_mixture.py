"""A mixture of experts through reward, train and sync for three iterations, its experts split over two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.e2e.runs import leftovers, manifests
from tests.fixtures.tiny_model import make_tiny_model
from tests.stages.train.small_runs import make, run_to_train


@pytest.mark.slow
def test_experts_are_trained_over_two_processes_and_the_next_samples_are_theirs(
    tiny_prompts: Path, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", family="qwen3_moe")
    flags = {"expert_model_parallel_size": 2, "use_distributed_optimizer": True, "use_routing_replay": True}
    run = run_to_train(tmp_path / "run", model, tiny_prompts, iteration=2, actor_num_gpus_per_node=2, **flags)

    make(run, "train", 2)
    make(run, "sync", 2)

    for iteration in range(3):
        metrics = manifests(run)[f"iterations/{iteration:06d}/train/manifest.json"].metrics
        assert abs(metrics["train/train_rollout_logprob_abs_diff"] or 0.0) < 1e-4
        assert (metrics["train/grad_norm"] or 0.0) > 0
    before, after = (load_file(run.weights_path(version) / "model.safetensors") for version in (0, 3))
    assert before.keys() == after.keys()
    moved = {name for name, tensor in before.items() if (tensor != after[name]).any()}
    for part in ("self_attn.q_proj", "mlp.gate", "mlp.experts.0.up_proj", "mlp.experts.3.down_proj"):
        assert f"model.layers.1.{part}.weight" in moved
    assert leftovers(run) == []
