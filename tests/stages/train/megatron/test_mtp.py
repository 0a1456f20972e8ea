"""Layers for multi-token prediction in training: what they compute, what they learn, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slime_stages.weights.export import export_hf
from stages.train.megatron.packing import PackedMicroBatch, PackedSample, pack_samples
from stages.train.megatron.passes import Item, Passes
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import StepResult, Trainer
from tests.stages.train.megatron.checkpoint_ranks import MTP, MTP_LAYOUTS
from tests.stages.train.megatron.checkpoint_ranks import train as steps
from tests.stages.train.megatron.mtp_reference import PREFIX, Reference
from tests.stages.train.megatron.test_checkpoint import run_program
from tests.stages.train.megatron.test_trainer import huggingface_form, largest_difference
from tests.stages.train.megatron.tiny_models import SETTINGS, make_samples, save_tiny_model, weighted_loss
from tests.stages.train.megatron.two_ranks import gather_weights

ONE = replace(SETTINGS, mtp_num_layers=1, enable_mtp_training=True, clip_grad=0.0)
TWO = replace(ONE, mtp_num_layers=2)


@pytest.fixture(scope="module")
def on_two_ranks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("two-ranks")
    process = run_program(folder, output, "mtp", ranks=2)
    assert process.returncode == 0, process.stderr[-6000:]
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("mimo", tmp_path_factory.mktemp("mimo"))


def train(folder: Path, settings: TrainerSettings, *micro_batches: PackedMicroBatch) -> tuple[Trainer, StepResult]:
    trainer = Trainer(folder, settings)
    return trainer, trainer.train_step(micro_batches, weighted_loss)


def gradients(trainer: Trainer, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of the layers for prediction, and of all else."""
    named = {name: each.clone() for name, each in huggingface_form(trainer, folder, "main_grad").items()}
    return {n: g for n, g in named.items() if PREFIX in n}, {n: g for n, g in named.items() if PREFIX not in n}


def siblings() -> list[PackedSample]:
    """Two that share a prompt, of the second of which a token in the middle is masked."""
    prompt, random = np.array([5, 6, 7, 8]), np.random.default_rng(1)
    weights = ([0.25, 0.25, 0.5], [0.5, 0.0, 0.0, 0.25, 0.25])
    return [
        PackedSample(
            tokens=np.concatenate([prompt, random.integers(0, 96, len(each))]),
            response_length=len(each),
            share_key=3,
            columns={"weight": np.array(each, np.float32)},
        )
        for each in weights
    ]


def test_logits_equal_those_of_the_engine_s_layers(folder: Path) -> None:
    samples, found = siblings(), []
    trainer = Trainer(folder, TWO)

    def finish(item: Item, output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found.extend([layer.output for layer in item.mtp])
        return output.sum(), {}

    Passes(trainer.chunks, trainer.config, trainer.device).run(
        [pack_samples(samples)], finish, forward_only=True, mtp_count=2
    )

    expected = [Reference(folder).logits(torch.from_numpy(sample.tokens), 2) for sample in samples]
    for layer, output in enumerate(found):
        wanted = [
            logits[layer][each.prompt_length - 2 - layer : len(each.tokens) - 2 - layer]
            for each, logits in zip(samples, expected, strict=True)
        ]
        torch.testing.assert_close(output, torch.cat(wanted), atol=1e-4, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"log_probs_chunk_size": 3}, {"recompute_granularity": "full"}])
def test_loss_and_gradients_equal_those_computed_one_sample_at_a_time(folder: Path, changes: dict[str, Any]) -> None:
    samples, reference = [*siblings(), *make_samples(7, shared=True)], Reference(folder)

    trainer, result = train(folder, replace(TWO, **changes), pack_samples(samples))

    first, second = reference.losses(samples, 2)
    (0.2 / 2 * (first + second)).backward()  # type: ignore[no-untyped-call]
    assert result.metrics["mtp_1_loss"] == pytest.approx(float(first), abs=1e-5)
    assert result.metrics["mtp_2_loss"] == pytest.approx(float(second), abs=1e-5)
    assert result.metrics["mtp_loss"] == pytest.approx(float(first + second), abs=1e-5)
    expected = {name: each.grad for name, each in reference.parameters.items() if each.grad is not None}
    assert expected.keys() == reference.parameters.keys()
    assert largest_difference(gradients(trainer, folder)[0], expected) < 1e-5


def test_the_model_itself_trains_as_if_there_were_no_such_layers(folder: Path) -> None:
    micro_batch = pack_samples(make_samples(7, shared=True))

    trainer, result = train(folder, ONE, micro_batch)
    alone, expected = train(folder, replace(SETTINGS, clip_grad=0.0), micro_batch)

    assert result.metrics["loss"] == expected.metrics["loss"]
    assert largest_difference(gradients(trainer, folder)[1], gradients(alone, folder)[1]) == 0.0
    weights = huggingface_form(alone, folder, "data")
    trained = huggingface_form(trainer, folder, "data")
    assert [name for name in weights if not torch.equal(weights[name], trained[name])] == []


def test_layers_that_are_not_to_be_trained_stay_as_they_are(folder: Path) -> None:
    micro_batch = pack_samples(make_samples(7, shared=True))
    before = huggingface_form(Trainer(folder, ONE), folder, "data")

    trainer, result = train(folder, replace(ONE, enable_mtp_training=False, weight_decay=0.5), micro_batch)

    assert "mtp_loss" not in result.metrics
    after = huggingface_form(trainer, folder, "data")
    assert all(torch.equal(after[name], before[name]) is (PREFIX in name) for name in before)


def test_steps_make_the_predictions_better(folder: Path) -> None:
    samples = [
        replace(each, columns={"weight": np.full(each.response_length, 0.02, np.float32)}) for each in siblings()
    ]
    trainer = Trainer(folder, replace(ONE, mtp_loss_scaling_factor=1.0))

    results = [trainer.train_step([pack_samples(samples)], weighted_loss) for _ in range(6)]

    losses = [result.metrics["mtp_loss"] for result in results]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]


def test_the_split_into_micro_batches_does_not_matter(folder: Path) -> None:
    samples = [*siblings(), *make_samples(7, shared=True)]

    together, one = train(folder, TWO, pack_samples(samples))
    apart, other = train(folder, TWO, *(pack_samples([sample]) for sample in samples))

    assert other.metrics == pytest.approx(one.metrics, abs=1e-5)
    assert largest_difference(gradients(apart, folder)[0], gradients(together, folder)[0]) < 1e-5


def test_a_rank_without_samples_and_one_without_predictions_take_part(folder: Path) -> None:
    short = PackedSample(tokens=np.array([3, 4]), response_length=1, columns={"weight": np.ones(1, np.float32)})

    for micro_batches in ((), (pack_samples([short]),)):
        trainer, result = train(folder, TWO, *micro_batches)

        assert result.metrics.get("mtp_loss", 0.0) == 0.0
        assert all(float(each.abs().max()) == 0.0 for each in gradients(trainer, folder)[0].values())


@pytest.mark.slow
@pytest.mark.parametrize("layout", MTP_LAYOUTS)
def test_two_ranks_train_save_and_resume_like_one(
    folder: Path, on_two_ranks: Path, layout: str, tmp_path: Path
) -> None:
    saved, straight, resumed = (
        load_file(on_two_ranks / f"{layout}-{name}.safetensors") for name in ("saved", "straight", "resumed")
    )
    (folder / "tokenizer.json").touch()
    export_hf(on_two_ranks / layout / "iter_0000003", folder, tmp_path / "out")
    one = Trainer(folder, MTP)
    steps(one, range(6))

    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == saved.keys()
    assert [name for name, tensor in exported.items() if not torch.equal(tensor, saved[name])] == []
    assert [name for name, tensor in straight.items() if not torch.equal(tensor, resumed[name])] == []
    assert largest_difference(straight, gather_weights(one, folder)) < 3e-4
