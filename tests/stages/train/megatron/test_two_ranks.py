from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slime_stages.weights.export import export_hf
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.tiny_models import (
    MODELS,
    SETTINGS,
    make_samples,
    save_tiny_model,
    train_with_torch,
    weighted_loss,
)
from tests.stages.train.megatron.two_ranks import CASES, QUICK, SAVED, STEPS, gather_weights, scores_of

REPOSITORY = Path(__file__).parents[4]
Reference = tuple[list[dict[str, float]], dict[str, Tensor]]
"""Loss, gradient norm and learning rate of each step, and the weights after the last."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in MODELS:
        (save_tiny_model(kind, folder / kind, layers=4) / "tokenizer.json").touch()
    return folder


@pytest.fixture(scope="module")
def quick(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(models, tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def slow(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(models, tmp_path_factory.mktemp("slow"), [case.name for case in CASES if case.name not in QUICK])


def run_cases(models: Path, folder: Path, names: Sequence[str]) -> Path:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.stages.train.megatron.two_ranks", str(models), str(folder), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert process.returncode == 0, process.stderr[-6000:]
    return folder


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def alone(models: Path) -> Callable[[str], tuple[Reference, dict[str, Tensor]]]:
    """What transformers and torch make of a kind of model; and its weights after the same steps in one process, its
    scores, and the gradient norm of a loss with entropies."""

    @cache
    def of(kind: str) -> tuple[Reference, dict[str, Tensor]]:
        trainer = Trainer(models / kind, SETTINGS)
        for step in range(STEPS):
            trainer.train_step([pack_samples(make_samples(step, shared=True))], weighted_loss)
        found = gather_weights(trainer, models / kind) | scores_of(trainer)
        last = trainer.train_step([pack_samples(make_samples(9, shared=True))], weighted_loss, entropy="gradient")
        return train_with_torch(models / kind, STEPS), found | {"entropy_grad_norm": torch.tensor(last.grad_norm)}

    return of


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", marked(case.name for case in CASES))
def test_two_ranks_train_like_one_and_like_torch_adamw(
    name: str,
    rank: int,
    alone: Callable[[str], tuple[Reference, dict[str, Tensor]]],
    request: pytest.FixtureRequest,
) -> None:
    folder = request.getfixturevalue("quick" if name in QUICK else "slow")
    case = next(case for case in CASES if case.name == name)
    (history, weights), one_process = alone(case.kind)
    report: dict[str, Any] = json.loads((folder / f"{name}-rank{rank}.json").read_text())

    for step, expected in zip(report["steps"], history, strict=True):
        assert step["metrics"]["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-5)
        assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert step["lr"] == pytest.approx(expected["lr"])
    tensors = load_file(folder / f"{name}-rank{rank}.safetensors")
    assert weights.keys() - tensors.keys() <= {"lm_head.weight"}  # where it is the embeddings'
    for key, tensor in tensors.items():
        torch.testing.assert_close(tensor, weights[key], atol=2e-4, rtol=0)
        torch.testing.assert_close(tensor, one_process[key], atol=2e-4, rtol=0)
    for key, tensor in load_file(folder / f"{name}-rank{rank}-scores.safetensors").items():
        torch.testing.assert_close(tensor, one_process[key], atol=1e-3, rtol=0)
    if report["entropy_grad_norm"] is not None:
        assert report["entropy_grad_norm"] == pytest.approx(float(one_process["entropy_grad_norm"]), rel=1e-3)


@pytest.mark.parametrize("name", marked(SAVED))
def test_a_checkpoint_of_any_layout_is_exported_bit_for_bit(
    name: str, models: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue("quick" if name in QUICK else "slow")
    model = models / next(case.kind for case in CASES if case.name == name)

    export_hf(folder / name / f"iter_{STEPS:07d}", model, tmp_path / "out")

    exported, trained = (
        load_file(tmp_path / "out" / "model.safetensors"),
        load_file(folder / f"{name}-rank0.safetensors"),
    )
    assert exported.keys() == trained.keys()
    assert [key for key, tensor in exported.items() if not torch.equal(tensor, trained[key])] == []
