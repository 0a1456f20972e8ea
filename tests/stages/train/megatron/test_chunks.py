"""Logits made a chunk of tokens at a time give what all of them at once give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.train.megatron.packing import pack_samples
from stages.train.megatron.step import StepResult, Trainer
from stages.train.megatron.value_model import value_model
from tests.stages.train.megatron.tiny_models import SETTINGS, make_samples, save_tiny_model, weighted_loss


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied and tied embeddings."""
    return save_tiny_model(request.param, tmp_path_factory.mktemp(request.param))


def step(model: Path, chunk: int) -> tuple[list[torch.Tensor], StepResult, dict[str, torch.Tensor]]:
    trainer = Trainer(model, replace(SETTINGS, log_probs_chunk_size=chunk))
    packed = [pack_samples(make_samples(0, shared=True))]
    [scores] = trainer.log_probs_and_entropies(packed)
    result = trainer.train_step(packed, weighted_loss, entropy="gradient")
    return list(scores), result, {name: each.detach().clone() for name, each in trainer.named_parameters()}


@pytest.mark.parametrize("chunk", [3, 1000])
def test_chunks_change_neither_scores_nor_gradients(model: Path, chunk: int) -> None:
    scores, whole, parameters = step(model, -1)
    found, chunked, changed = step(model, chunk)

    torch.testing.assert_close(found, scores, atol=1e-5, rtol=0)
    assert chunked.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert chunked.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-6)
    torch.testing.assert_close(changed, parameters, atol=1e-5, rtol=0)


def test_losses_on_logits_and_value_models_get_theirs_whole(model: Path) -> None:
    packed = [pack_samples(make_samples(0, shared=True))]
    shapes = []
    trainer = Trainer(model, replace(SETTINGS, log_probs_chunk_size=3))

    trainer.train_step(packed, lambda _, logits, __: (shapes.append(logits.shape) or logits.sum(), {}), on_logits=True)
    critic = Trainer(model, replace(SETTINGS, log_probs_chunk_size=3), provider=value_model)
    [values] = critic.values(packed)

    assert shapes == [(len(packed[0].targets), 96)]
    assert values.shape == (len(packed[0].targets),)
