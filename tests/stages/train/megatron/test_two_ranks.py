from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

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
from tests.stages.train.megatron.two_ranks import CASES, STEPS, Case, gather_weights

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in MODELS:
        save_tiny_model(kind, folder / kind)
    return folder


@pytest.fixture(scope="module")
def output(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.stages.train.megatron.two_ranks", str(models), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert process.returncode == 0, process.stderr[-6000:]
    return folder


@pytest.fixture(scope="module")
def by_torch(models: Path) -> dict[str, tuple[list[dict[str, float]], dict[str, Tensor]]]:
    return {kind: train_with_torch(models / kind, STEPS) for kind in MODELS}


@pytest.fixture(scope="module")
def by_one_process(models: Path) -> dict[str, dict[str, Tensor]]:
    """Weights after the same steps, log-probs under them, and the gradient norm of a loss with entropies."""
    outcomes = {}
    for kind in MODELS:
        trainer = Trainer(models / kind, SETTINGS)
        for step in range(STEPS):
            trainer.train_step([pack_samples(make_samples(step, shared=True))], weighted_loss)
        outcomes[kind] = gather_weights(trainer, models / kind)
        outcomes[kind]["log_probs"] = trainer.log_probs([pack_samples(make_samples(8, shared=True))])[0]
        last = trainer.train_step([pack_samples(make_samples(9, shared=True))], weighted_loss, entropy="gradient")
        outcomes[kind]["entropy_grad_norm"] = torch.tensor(last.grad_norm)
    return outcomes


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_ranks_train_like_one_and_like_torch_adamw(
    case: Case,
    rank: int,
    output: Path,
    by_torch: dict[str, tuple[list[dict[str, float]], dict[str, Tensor]]],
    by_one_process: dict[str, dict[str, Tensor]],
) -> None:
    tensors = load_file(output / f"{case.name}-rank{rank}.safetensors")
    report: dict[str, Any] = json.loads((output / f"{case.name}-rank{rank}.json").read_text())
    history, weights = by_torch[case.kind]
    alone = by_one_process[case.kind]

    for step, expected in zip(report["steps"], history, strict=True):
        assert step["metrics"]["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert step["lr"] == pytest.approx(expected["lr"])
    torch.testing.assert_close(tensors["log_probs"], alone["log_probs"], atol=1e-3, rtol=0)
    for name, tensor in tensors.items():
        if name != "log_probs":
            torch.testing.assert_close(tensor, weights[name], atol=2e-4, rtol=0)
            torch.testing.assert_close(tensor, alone[name], atol=2e-4, rtol=0)
    if report["entropy_grad_norm"] is not None:
        assert report["entropy_grad_norm"] == pytest.approx(float(alone["entropy_grad_norm"]), rel=1e-3)
