from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter, save

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.digest import digest_file
from slime_stages.weights.export import export_hf
from slime_stages.weights.publish import finish_folder, unpublished_folder, verify_weights
from slime_stages.weights.torch_dist import TorchDistReader
from slime_stages.weights.verify import Probe, load_strictly, verify_log_probs
from stages.train.megatron import checkpoint
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.settings import TrainerSettings
from stages.train.megatron.step import Trainer
from tests.fixtures.tiny_model import make_tiny_model
from tests.stages.train.megatron.tiny_models import make_samples

FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_tiny_model(tmp_path_factory.mktemp("models") / family, family=family) for family in FAMILIES}


@pytest.fixture(scope="module")
def checkpoints(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What Megatron saves of each model, untrained."""
    saved = {}
    for family, model in models.items():
        trainer = Trainer(model, TrainerSettings())
        folder = tmp_path_factory.mktemp("checkpoints") / family
        saved[family] = checkpoint.save(trainer, folder, 1, background=False).wait()
    return saved


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name, tensor in actual.items() if not torch.equal(tensor, expected[name])] == []


def save_parameters(folder: Path, parameters: dict[str, Tensor]) -> Path:
    """A torch_dist checkpoint of whole parameters under their own names."""
    save(parameters, storage_writer=FileSystemWriter(folder), no_dist=True)
    (folder / "metadata.json").write_text("{}")
    return folder


def read_all(checkpoint: Path) -> dict[str, Tensor]:
    with TorchDistReader(checkpoint) as reader:
        return {name: reader.read(name) for name in reader.names()}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_model_comes_out_bit_equal(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    report = export_hf(checkpoints[family], models[family], tmp_path / "out")

    expected = weights_of(models[family])
    assert_equal(weights_of(tmp_path / "out"), expected)
    assert report.tensor_count == len(expected)
    assert report.weight_bytes == sum(tensor.nbytes for tensor in expected.values())
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (models[family] / name).read_bytes()
    assert report.digests == {path.name: digest_file(path) for path in (tmp_path / "out").iterdir()}


def test_parameters_have_the_names_and_values_of_the_model(
    models: dict[str, Path], checkpoints: dict[str, Path]
) -> None:
    trainer = Trainer(models["qwen3"], TrainerSettings())

    assert_equal(read_all(checkpoints["qwen3"]), {n: p.detach() for n, p in trainer.model.module.named_parameters()})


def test_a_large_model_is_split_into_files_with_an_index(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    export_hf(checkpoints["qwen3"], models["qwen3"], tmp_path / "out", max_shard_bytes=150_000)

    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert files == [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    assert len(files) > 2
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "out" / file, framework="pt") as opened:
            assert opened.get_slice(name).get_dtype() == "F32"
            assert opened.metadata() == {"format": "pt"}
    assert_equal(weights_of(tmp_path / "out"), weights_of(models["qwen3"]))
    load_strictly(tmp_path / "out")


def test_another_type_is_written_and_told_in_the_config(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    export_hf(checkpoints["qwen3"], models["qwen3"], tmp_path / "out", dtype="bfloat16")

    expected = {name: tensor.bfloat16() for name, tensor in weights_of(models["qwen3"]).items()}
    assert_equal(weights_of(tmp_path / "out"), expected)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_padding_of_the_vocabulary_is_cut_off(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    padded = read_all(checkpoints["llama"])
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        padded[name] = torch.cat([padded[name], torch.ones(128, padded[name].shape[1])])

    export_hf(save_parameters(tmp_path / "padded", padded), models["llama"], tmp_path / "out")

    assert_equal(weights_of(tmp_path / "out"), weights_of(models["llama"]))


def test_the_output_layer_of_a_tied_model_is_left_out(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    parameters = read_all(checkpoints["qwen3"])
    parameters["output_layer.weight"] = parameters["embedding.word_embeddings.weight"]

    export_hf(save_parameters(tmp_path / "tied", parameters), models["qwen3"], tmp_path / "out")

    assert "lm_head.weight" not in weights_of(tmp_path / "out")


def test_a_checkpoint_of_another_model_is_refused(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"missing .*k_norm.weight.*, unexpected .*k_proj.bias"):
        export_hf(checkpoints["qwen2"], models["qwen3"], tmp_path / "out")


def test_a_parameter_with_a_missing_part_is_refused(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    with TorchDistReader(checkpoints["qwen3"]) as reader:
        metadata = reader._metadata.state_dict_metadata["decoder.layers.mlp.linear_fc2.weight"]
        del metadata.chunks[0]
        with pytest.raises(DataError, match=r"lacks 8192 values of decoder.layers.0.mlp.linear_fc2.weight"):
            reader.read("decoder.layers.0.mlp.linear_fc2.weight")
        reader.read("decoder.layers.1.mlp.linear_fc2.weight")


def test_a_checkpoint_that_is_not_there_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="iter_0000007 is missing"):
        export_hf(tmp_path / "iter_0000007", models["qwen3"], tmp_path / "out")


def test_an_export_is_published_with_the_digests_it_wrote(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "000001"
    with unpublished_folder(target) as folder:
        report = export_hf(checkpoints["qwen3"], models["qwen3"], folder)
        record = finish_folder(folder, 1, digests=report.digests)
        folder.rename(target)

    assert verify_weights(target) == record
    assert {name: file.digest for name, file in record.files.items()} == report.digests


def test_a_published_version_can_be_the_template_of_the_next(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    for source, version in ((models["qwen3"], "000001"), (tmp_path / "000001", "000002")):
        with unpublished_folder(tmp_path / version) as folder:
            export_hf(checkpoints["qwen3"], source, folder)
            finish_folder(folder, int(version))
            folder.rename(tmp_path / version)

    assert verify_weights(tmp_path / "000002").version == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trained_models_log_probs_verify_its_export(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    export_hf(checkpoints[family], models[family], tmp_path / "out")
    trainer = Trainer(models[family], TrainerSettings(rollout_temperature=0.7))
    samples = make_samples(5, shared=False)[:3]
    scores = trainer.log_probs([pack_samples([sample]) for sample in samples])
    probes = [
        Probe.from_mapping({"tokens": sample.tokens.tolist(), "log_probs": score.tolist(), "temperature": 0.7})
        for sample, score in zip(samples, scores, strict=True)
    ]

    assert verify_log_probs(tmp_path / "out", probes, 1e-4) < 1e-4

    wrong = Probe(
        tokens=probes[1].tokens, log_probs=[probes[1].log_probs[0] - 0.25, *probes[1].log_probs[1:]], temperature=0.7
    )
    with pytest.raises(DataError, match=r"off by 0.25 \(at most 0.0001\), token 0 of probe 1"):
        verify_log_probs(tmp_path / "out", [probes[0], wrong], 1e-4)


def test_weights_that_are_not_numbers_do_not_verify(
    models: dict[str, Path], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    parameters = read_all(checkpoints["qwen3"])
    parameters["decoder.final_layernorm.weight"] = torch.full((64,), torch.nan)
    export_hf(save_parameters(tmp_path / "nan", parameters), models["qwen3"], tmp_path / "out")

    with pytest.raises(DataError, match="off by inf"):
        verify_log_probs(tmp_path / "out", [Probe(tokens=[1, 2, 3], log_probs=[-1.0])], 1e-2)


def test_a_folder_with_a_missing_tensor_does_not_load_strictly(models: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "model"
    shutil.copytree(models["qwen3"], folder)
    weights = weights_of(folder)
    weights["model.surplus.weight"] = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(DataError, match=r"missing keys: model.norm.weight; unexpected keys: model.surplus.weight"):
        load_strictly(folder)


def test_export_needs_neither_megatron_nor_transformers() -> None:
    program = (
        "import sys, slime_stages.weights.export;"
        "print([name for name in ('megatron', 'transformers') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "[]"
