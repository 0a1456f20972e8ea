"""Every loss gives the same step however its samples are split, and moves what it is there to move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stages.train.batches import settings, train
from tests.stages.train.losses import LAYOUTS, LOSSES, MODELS, measured, model_of
from tests.stages.train.megatron.tiny_models import save_tiny_model

REPOSITORY = Path(__file__).parents[3]
SPLITS: tuple[dict[str, Any], ...] = (
    {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096},
    {"micro_batch_size": 2},
    {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 32, "balance_by_flops": True},
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kind, layers in MODELS.items():
        save_tiny_model(kind, folder / kind, layers=layers)
    return folder


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_does_not_depend_on_how_its_samples_are_split(models: Path, loss: str) -> None:
    splits = ({"micro_batch_size": 1}, *SPLITS)
    one, *others = [train(models / model_of(loss), settings(**LOSSES[loss], **split))[1] for split in splits]

    assert all(result.updated for result in one.results)
    for other in others:
        assert other.column_means == pytest.approx(one.column_means, abs=1e-5)
        for mine, expected in zip(other.results, one.results, strict=True):
            assert mine.metrics == pytest.approx(expected.metrics, abs=1e-5)
            assert mine.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)


@pytest.fixture(scope="module")
def on_two_ranks(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("two-ranks") / "steps.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.stages.train.losses", str(models), str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert process.returncode == 0, process.stderr[-6000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize(("loss", "layout"), [(loss, layout) for loss, each in LAYOUTS.items() for layout in each])
@pytest.mark.slow
def test_two_processes_take_the_step_of_one(models: Path, on_two_ranks: dict[str, Any], loss: str, layout: str) -> None:
    alone = measured(train(models / model_of(loss, layout), settings(**LOSSES[loss]))[1])

    together = on_two_ranks[f"{loss}-{layout}"]

    assert together["means"] == pytest.approx(alone["means"], abs=1e-5)
    assert len(together["steps"]) == len(alone["steps"])
    for mine, expected in zip(together["steps"], alone["steps"], strict=True):
        assert mine == pytest.approx(expected, rel=1e-3, abs=1e-5)
