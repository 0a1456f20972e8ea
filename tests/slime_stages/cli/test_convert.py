"""Weights go from Hugging Face's format into Megatron's and back, bit for bit, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slime_stages.cli.main import main
from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import MODEL, find_weights, read_record


@pytest.fixture(scope="module")
def converted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("converted") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert main(["convert", str(tiny_model), str(target)]) == 0
    return target


def test_a_huggingface_folder_becomes_what_megatron_calls_a_release(converted: Path) -> None:
    assert (converted / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert find_weights(converted) == find_weights(converted / "release") == converted / "release"
    record = read_record(converted / "release")
    assert record is not None
    assert record.parts == [MODEL]
    assert sorted(path.name for path in converted.iterdir()) == ["latest_checkpointed_iteration.txt", "release"]


def test_weights_come_back_bit_for_bit(
    converted: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "back"

    assert main(["convert", str(converted), str(target), "--hf-checkpoint", str(tiny_model)]) == 0

    out, err = capsys.readouterr()
    assert out == f"{target}\n"
    assert f"next: slime-stages init --run RUN --config CONFIG.toml --hf-checkpoint {target}" in err
    before, after = load_file(tiny_model / "model.safetensors"), load_file(target / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (target / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()


def test_a_checkpoint_within_a_run_is_of_the_model_that_the_run_began_with(
    converted: Path, tiny_model: Path, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    shutil.copytree(tiny_model, run.weights_path(0))
    shutil.copytree(converted / "release", run.checkpoints_path / "iter_0000003")

    words = ["convert", str(run.checkpoints_path), str(tmp_path / "out"), "--step", "3", "--dtype", "bfloat16"]
    assert main([*words, "--max-shard-gb", "0.00001"]) == 0

    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    first = load_file(tmp_path / "out" / sorted(set(index["weight_map"].values()))[0])
    assert {tensor.dtype for tensor in first.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["{converted}", "{model}"], "exists, and is not overwritten", 2),
        (["{converted}", "new"], "does not say of which model it is", 2),
        (["{converted}", "new", "--step", "7"], "no whole checkpoint of iteration 7", 66),
        (["{model}", "new", "--step", "7"], "for which --step has no meaning", 2),
        (["{model}", "new", "--dtype", "float16"], "not in float16", 2),
        (["nowhere", "new"], "is no folder", 66),
    ],
)
def test_what_cannot_be_converted_is_refused(
    words: list[str], says: str, code: int, converted: Path, tiny_model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)

    assert main(["convert", *(word.format(converted=converted, model=tiny_model) for word in words)]) == code

    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
