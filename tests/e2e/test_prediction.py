"""A run of a model with a layer for multi-token prediction, by the command line and with a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.runs import new_run
from tests.e2e.test_algorithms import metric
from tests.e2e.test_pipeline import shell
from tests.fixtures.tiny_model import make_tiny_model
from tests.stages.train.megatron.tiny_models import add_prediction_layers

pytestmark = pytest.mark.slow
ITERATIONS = 2

CONFIGURATION = """
from transformers import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"
"""
"""Transformers knows no such model; its folder says how to read it."""


def make_tiny_mimo(folder: Path, *, seed: int = 0) -> Path:
    make_tiny_model(folder, family="qwen2", seed=seed)
    add_prediction_layers(folder, 1)
    (folder / "configuration_mimo.py").write_text(CONFIGURATION)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_mimo.MiMoConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_is_trained_with_its_layer_for_prediction_or_without(
    tiny_prompts: Path, tmp_path: Path, trained: bool
) -> None:
    model = make_tiny_mimo(tmp_path / "model")
    layers = {"mtp_num_layers": 1, "enable_mtp_training": True} if trained else {}
    run = new_run(
        tmp_path / "run",
        model,
        tiny_prompts,
        engine=None,
        rollout_shards=1,
        lr=1e-3,
        **layers,
    )

    done = shell(f"slime-stages iter --run {run.root} --n {ITERATIONS}")

    assert done.returncode == 0, done.stderr
    assert max(metric(run, "train/probs_diff")) < 1e-4
    before, after = (load_file(each / "model.safetensors") for each in (model, run.weights_path(ITERATIONS)))
    assert before.keys() == after.keys()
    of_layer = [name for name in before if ".mtp_layers." in name]
    assert len(of_layer) == 16
    assert [torch.equal(before[name], after[name]) for name in of_layer] == [not trained] * len(of_layer)
    if trained:
        assert np.all(np.array(metric(run, "train/mtp_loss")) > 0)
