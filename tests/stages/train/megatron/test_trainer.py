from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout
from slime_stages.weights.mapping.tensors import to_huggingface
from stages.train.megatron.packing import PackedMicroBatch, pack_samples
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.tiny_models import (
    MODELS,
    SETTINGS,
    load_transformers_model,
    make_samples,
    one_by_one,
    save_tiny_model,
    train_with_torch,
    transformers_loss,
    transformers_scores,
    weighted_loss,
)

STEPS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_tiny_model(kind, tmp_path_factory.mktemp(kind)) for kind in MODELS}


def huggingface_form(trainer: Trainer, folder: Path, attribute: str) -> dict[str, Tensor]:
    """Parameters (`data`) or gradients (`main_grad`) under their Hugging Face names."""
    layout = weight_layout(read_huggingface_config(folder))
    named = trainer.model.module.named_parameters()
    return {
        huggingface_name: tensor
        for name, parameter in named
        for huggingface_name, tensor in to_huggingface(name, [getattr(parameter, attribute)], layout)
    }


def largest_difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max(float((tensor - expected[name]).abs().max()) for name, tensor in actual.items())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_log_probs_and_gradients_equal_those_of_transformers(folders: dict[str, Path], kind: str, shared: bool) -> None:
    samples = make_samples(7, shared=shared)
    reference = load_transformers_model(folders[kind])
    trainer = Trainer(folders[kind], replace(SETTINGS, clip_grad=0.0))
    micro_batch = pack_samples(samples)

    ((log_probs, entropies),) = trainer.log_probs_and_entropies([micro_batch])
    result = trainer.train_step([micro_batch], weighted_loss, entropy="gradient")

    scores = [transformers_scores(reference, sample) for sample in samples]
    torch.testing.assert_close(log_probs, torch.cat([each for each, _ in scores]), atol=1e-4, rtol=0)
    torch.testing.assert_close(entropies, torch.cat([each for _, each in scores]), atol=1e-4, rtol=0)
    loss = transformers_loss(reference, samples, with_entropy=True)
    loss.backward()  # type: ignore[no-untyped-call]
    assert result.metrics["loss"] == pytest.approx(float(loss), abs=1e-5)
    gradients = one_by_one({name: parameter.grad for name, parameter in reference.named_parameters()})
    assert largest_difference(huggingface_form(trainer, folders[kind], "main_grad"), gradients) < 1e-5


def test_a_group_split_over_the_share_limit_gives_the_same_log_probs(folders: dict[str, Path]) -> None:
    samples = make_samples(7, shared=True)
    trainer = Trainer(folders["qwen3"], SETTINGS)

    whole, split = trainer.log_probs([pack_samples(samples), pack_samples(samples, share_limit=16)])

    torch.testing.assert_close(whole, split, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_three_steps_equal_those_of_torch_adamw(folders: dict[str, Path], kind: str) -> None:
    history, weights = train_with_torch(folders[kind], STEPS)
    trainer = Trainer(folders[kind], SETTINGS)

    for step, expected in enumerate(history):
        samples = make_samples(step, shared=True)
        result = trainer.train_step([pack_samples(samples[:4]), pack_samples(samples[4:])], weighted_loss)

        assert result.updated
        assert result.lr == pytest.approx(expected["lr"])
        assert result.metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-5)
        assert result.metrics["tokens"] == sum(sample.response_length for sample in samples)
        assert result.grad_norm == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert largest_difference(huggingface_form(trainer, folders[kind], "data"), weights) < 2e-4


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {"recompute_granularity": "full"}),
        ("qwen3", {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}),
        ("qwen3", {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "mlp")}),
        ("qwen3_moe", {"recompute_granularity": "selective", "recompute_modules": ("moe",)}),
    ],
)
def test_recomputation_gives_the_same_gradients(folders: dict[str, Path], kind: str, changes: dict[str, Any]) -> None:
    micro_batch = pack_samples(make_samples(7, shared=True))
    gradients = []
    for more in ({}, changes):
        trainer = Trainer(folders[kind], replace(SETTINGS, clip_grad=0.0, **more))
        trainer.train_step([micro_batch], weighted_loss)
        gradients.append(huggingface_form(trainer, folders[kind], "main_grad"))

    assert largest_difference(gradients[0], gradients[1]) == 0.0


def test_fields_of_megatron_reach_its_configs(folders: dict[str, Path]) -> None:
    fields = {"moe_router_dtype": "fp64", "check_for_nan_in_grad": True, "decoupled_weight_decay": False}

    trainer = Trainer(folders["qwen3_moe"], replace(SETTINGS, megatron=fields))

    assert trainer.config.moe_router_dtype == "fp64"
    assert trainer.model.ddp_config.check_for_nan_in_grad is True
    assert trainer.optimizer.config.decoupled_weight_decay is False


def test_forward_only_micro_batches_count_in_the_metrics_but_leave_no_gradient(folders: dict[str, Path]) -> None:
    samples = make_samples(7, shared=True)
    trainer = Trainer(folders["llama"], replace(SETTINGS, clip_grad=0.0))
    alone = trainer.train_step([pack_samples(samples[:6])], weighted_loss)
    expected = huggingface_form(trainer, folders["llama"], "main_grad")
    expected = {name: tensor.clone() for name, tensor in expected.items()}

    trainer = Trainer(folders["llama"], replace(SETTINGS, clip_grad=0.0))
    both = trainer.train_step([pack_samples(samples[:6])], weighted_loss, forward_only=[pack_samples(samples[6:])])

    assert both.grad_norm == alone.grad_norm
    assert largest_difference(huggingface_form(trainer, folders["llama"], "main_grad"), expected) == 0.0
    assert both.metrics["tokens"] == sum(sample.response_length for sample in samples)
    assert both.metrics["loss"] != alone.metrics["loss"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_whose_gradients_are_not_finite_changes_nothing(folders: dict[str, Path], bad: float) -> None:
    def bad_loss(micro_batch: PackedMicroBatch, log_probs: Tensor, entropies: Tensor | None) -> Any:
        return log_probs.sum() * bad, {}

    trainer = Trainer(folders["qwen2"], SETTINGS)
    before = {name: tensor.clone() for name, tensor in trainer.model.module.state_dict().items() if tensor is not None}

    result = trainer.train_step([pack_samples(make_samples(0, shared=True))], bad_loss)

    assert not result.updated
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(trainer.model.module.state_dict()[name], tensor) for name, tensor in before.items())
    assert trainer.scheduler.num_steps == 0
    recovered = trainer.train_step([pack_samples(make_samples(0, shared=True))], weighted_loss)
    assert recovered.updated


def test_bfloat16_stays_near_float32(folders: dict[str, Path]) -> None:
    micro_batch = pack_samples(make_samples(7, shared=True))
    full = Trainer(folders["qwen3"], SETTINGS)
    half = Trainer(folders["qwen3"], replace(SETTINGS, dtype="bfloat16"))

    (expected,), (actual,) = full.log_probs([micro_batch]), half.log_probs([micro_batch])

    assert actual.dtype == torch.float32
    assert float((actual - expected).abs().max()) < 0.2
    assert half.train_step([micro_batch], weighted_loss).updated
