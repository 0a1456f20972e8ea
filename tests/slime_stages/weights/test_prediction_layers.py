"""Layers for multi-token prediction on their way from a model's folder through training into the next one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slime_stages.errors import DataError
from slime_stages.weights.checkpoints import RELEASE
from slime_stages.weights.export import export_hf
from slime_stages.weights.torch_dist import TorchDistReader
from slime_stages.weights.verify import Probe, load_strictly, verify_log_probs
from stages.train.megatron import checkpoint
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from tests.stages.train.megatron.checkpoint_ranks import train
from tests.stages.train.megatron.tiny_models import SETTINGS, make_samples, save_tiny_model
from tests.stages.train.megatron.two_ranks import gather_weights

PREFIX = "model.mtp_layers."
TRAINED = replace(SETTINGS, mtp_num_layers=2, enable_mtp_training=True)
NAMES = {
    *("token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"),
    *("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight"),
    *(f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")),
    *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
}
"""What SGLang's MiMoMTP loads of a layer."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model("mimo", tmp_path_factory.mktemp("mimo"))
    (folder / "tokenizer.json").touch()
    return folder


def exported(model: Path, settings: TrainerSettings, folder: Path) -> tuple[dict[str, Tensor], Trainer]:
    """The weights after two steps."""
    trainer = Trainer(model, settings)
    train(trainer, range(2))
    export_hf(checkpoint.save(trainer, folder, 2, background=False).wait(), model, folder / "out")
    return load_file(folder / "out" / "model.safetensors"), trainer


def changed(weights: dict[str, Tensor], model: Path) -> set[str]:
    before = load_file(model / "model.safetensors")
    assert weights.keys() == before.keys()
    return {name for name, tensor in before.items() if not torch.equal(weights[name], tensor)}


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, mtp_num_layers=1)])
def test_layers_that_are_not_trained_come_out_as_they_went_in(
    model: Path, tmp_path: Path, settings: TrainerSettings
) -> None:
    weights, _ = exported(model, settings, tmp_path)

    assert changed(weights, model) == {name for name in weights if PREFIX not in name}


def test_trained_layers_come_out_under_the_names_that_the_engine_loads(model: Path, tmp_path: Path) -> None:
    weights, trainer = exported(model, TRAINED, tmp_path)

    of_layers = {name for name in weights if name.startswith(PREFIX)}
    assert of_layers == {f"{PREFIX}{layer}.{name}" for layer in (0, 1) for name in NAMES}
    assert changed(weights, model) == weights.keys()
    trained = gather_weights(trainer, model)
    assert [name for name in weights if not torch.equal(weights[name], trained[name])] == []


def test_an_export_verifies_though_transformers_knows_no_such_layers(model: Path, tmp_path: Path) -> None:
    _, trainer = exported(model, replace(TRAINED, rollout_temperature=1.0), tmp_path)
    samples = make_samples(5, shared=False)[:2]
    scores = trainer.log_probs([pack_samples([sample]) for sample in samples])
    probes = [Probe(tokens=s.tokens.tolist(), log_probs=of.tolist()) for s, of in zip(samples, scores, strict=True)]

    assert verify_log_probs(tmp_path / "out", probes, 1e-4) < 1e-4

    config = json.loads((model / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    with pytest.raises(DataError, match=r"unexpected keys: model\.mtp_layers\.1\."):
        load_strictly(tmp_path / "out")


def test_a_converted_checkpoint_holds_them(model: Path, tmp_path: Path) -> None:
    from stages.train.convert import convert_to_torch_dist

    convert_to_torch_dist(model, tmp_path / "converted", dtype=None)

    export_hf(tmp_path / "converted" / RELEASE, model, tmp_path / "out")
    with TorchDistReader(tmp_path / "converted" / RELEASE) as reader:
        assert "mtp.layers.1.eh_proj.weight" in reader.names()
    assert changed(load_file(tmp_path / "out" / "model.safetensors"), model) == set()


def test_training_of_them_resumes_exactly(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model, TRAINED)
    train(trainer, range(2))
    checkpoint.save(trainer, tmp_path, 2, background=False).wait()
    train(trainer, range(2, 4))

    resumed = Trainer(model, TRAINED)
    checkpoint.load(resumed, tmp_path, 2)
    train(resumed, range(2, 4))

    expected = gather_weights(trainer, model)
    assert [
        name for name, each in gather_weights(resumed, model).items() if not torch.equal(each, expected[name])
    ] == []


def test_a_policy_goes_on_with_the_layers_that_it_was_saved_with(model: Path, tmp_path: Path) -> None:
    for name, settings in {"with": TRAINED, "without": SETTINGS}.items():
        checkpoint.save(Trainer(model, settings), tmp_path / name, 1, background=False).wait()

    with pytest.raises(DataError, match="holds 0 layers for multi-token prediction, and mtp_num_layers asks for 2"):
        checkpoint.load(Trainer(model, TRAINED), tmp_path / "without", 1)
    with pytest.raises(DataError, match="holds 2 layers for multi-token prediction, and mtp_num_layers asks for 0"):
        checkpoint.load(Trainer(model, SETTINGS), tmp_path / "with", 1)
    checkpoint.load(Trainer(model, SETTINGS), tmp_path / "with", 1, with_optimizer=False)
