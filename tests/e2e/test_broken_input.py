"""Each kind of broken input ends in one paragraph with the next command, the right exit code, and nothing lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.cli.main import main
from slime_stages.run.rundir import RunDir
from tests.fakes.rollouts import fake_rollout

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process: its exit code, and what it said on stderr."""

    def run(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(list(words))
        return code, capfd.readouterr().err

    return run


@pytest.fixture
def settings(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> Path:
    """A config file for the tiny model: 2 prompts × 2 samples of 4 tokens, in one shard."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        f"""
[model]
hf_checkpoint = "{tiny_model}"
[data]
prompt_data = ["{tiny_prompts}"]
input_key = "prompt"
label_key = "label"
apply_chat_template = true
[rollout]
rollout_batch_size = 2
n_samples_per_prompt = 2
rollout_max_response_len = 4
[reward]
rm_type = "random"
[train]
use_dynamic_batch_size = true
max_tokens_per_gpu = 512
"""
    )
    return path


@pytest.fixture
def begun(settings: Path, tmp_path: Path, run_cli: Run) -> Path:
    """A run with the rollout of iteration 0 committed."""
    folder = tmp_path / "run"
    assert run_cli("init", "--run", str(folder), "--config", str(settings)) == (0, "")
    fake_rollout(RunDir(folder), 0)
    return folder


def shard_of(run: Path, suffix: str = "parquet") -> Path:
    return run / f"iterations/000000/rollout/shard-00000-of-00001.{suffix}"


def test_a_truncated_shard_is_bad_data_and_names_the_command_that_makes_it_again(begun: Path, run_cli: Run) -> None:
    shard = shard_of(begun)
    shard.write_bytes(shard.read_bytes()[:-100])

    code, says = run_cli("reward", "--run", str(begun))

    assert code == 65
    assert f"{shard} has {shard.stat().st_size} bytes, its manifest says {shard.stat().st_size + 100}" in says
    assert f"hint: slime-stages rollout --run {begun} --iter 0 --shard 0" in says


def test_a_manifest_with_another_digest_is_bad_data(begun: Path, run_cli: Run) -> None:
    shard = shard_of(begun)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    code, says = run_cli("reward", "--run", str(begun))

    assert code == 65
    assert "has digest" in says
    assert f"hint: slime-stages rollout --run {begun} --iter 0 --shard 0" in says


def test_a_manifest_that_is_no_json_is_bad_data(begun: Path, run_cli: Run) -> None:
    shard_of(begun, "json").write_text('{"kind": "rollout", "sche')

    code, says = run_cli("reward", "--run", str(begun))

    assert code == 65
    assert "is not a whole manifest" in says


def test_a_missing_input_names_the_stage_to_run_first(begun: Path, run_cli: Run) -> None:
    code, says = run_cli("train", "--run", str(begun))

    assert code == 66
    assert f"hint: slime-stages reward --run {begun} --iter 0 --shard 0" in says


def test_a_shard_that_does_not_exist_is_a_usage_error(begun: Path, run_cli: Run) -> None:
    code, says = run_cli("reward", "--run", str(begun), "--shard", "3")

    assert code == 2
    assert "iteration 0 has 1 shards; there is no shard 3" in says


def test_a_bad_line_in_a_prompt_file_is_named_with_its_number(settings: Path, tmp_path: Path, run_cli: Run) -> None:
    prompts = tmp_path / "bad.jsonl"
    prompts.write_text('{"prompt": "1+1", "label": "2"}\n{"prompt": "1+2", "label": \n')

    code, says = run_cli("init", "--run", str(tmp_path / "r"), "--config", str(settings), "--prompt-data", str(prompts))

    assert code == 65
    assert f"{prompts}" in says
    assert "line 2" in says
    assert "hint: " in says


def test_a_key_that_the_prompts_lack_is_named_with_those_they_have(
    settings: Path, tmp_path: Path, run_cli: Run
) -> None:
    code, says = run_cli("init", "--run", str(tmp_path / "r"), "--config", str(settings), "--input-key", "promt")

    assert code == 65
    assert "promt" in says
    assert "prompt" in says.replace("promt", "")


def test_an_unknown_flag_is_refused_with_the_nearest_one(settings: Path, tmp_path: Path, run_cli: Run) -> None:
    code, says = run_cli("init", "--run", str(tmp_path / "r"), "--config", str(settings), "--rollout-temprature", "1")

    assert code == 2
    assert "did you mean --rollout-temperature?" in says
    assert not (tmp_path / "r").exists()


def test_an_unknown_key_in_the_config_is_refused_with_file_and_line(
    settings: Path, tmp_path: Path, run_cli: Run
) -> None:
    settings.write_text(settings.read_text().replace("rm_type", "rm_typ"))

    code, says = run_cli("init", "--run", str(tmp_path / "r"), "--config", str(settings))

    assert code == 2
    assert "rm_typ" in says
    assert "rm_type" in says.replace("rm_typ ", "")


def test_a_model_without_a_tokenizer_is_a_missing_input(
    settings: Path, tiny_model: Path, tmp_path: Path, run_cli: Run
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "tokenizer.json").unlink()

    code, says = run_cli("init", "--run", str(tmp_path / "r"), "--config", str(settings), "--hf-checkpoint", str(model))

    assert code == 66
    assert f"model folder {model} is without a tokenizer (tokenizer.json)" in says
    assert "hint: copy the tokenizer's files" in says


def test_an_sglang_flag_that_does_not_exist_is_refused_before_anything_starts(
    settings: Path, tmp_path: Path, run_cli: Run
) -> None:
    code, says = run_cli(
        "init", "--run", str(tmp_path / "r"), "--config", str(settings), "--sglang-mem-fraction-statc", "0.5"
    )

    assert code == 2
    assert "mem_fraction_static" in says or "mem-fraction-static" in says


def test_a_reward_that_cannot_be_imported_is_refused_before_anything_starts(
    settings: Path, tmp_path: Path, run_cli: Run
) -> None:
    code, says = run_cli(
        "init", "--run", str(tmp_path / "r"), "--config", str(settings), "--custom-rm-path", "no_such_module.reward"
    )

    assert code == 2
    assert "`no_such_module.reward` cannot be imported" in says


def test_a_full_disk_is_worth_another_try_and_loses_nothing(begun: Path, run_cli: Run, tmp_path: Path) -> None:
    import subprocess

    target = begun / "iterations/000000/reward"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(target)], check=True)
    try:
        code, says = run_cli("reward", "--run", str(begun))
        left = [path.name for path in target.iterdir()]
    finally:
        subprocess.run(["umount", str(target)], check=True)

    assert code == 75
    assert "no space left" in says
    assert "hint: df -h" in says
    assert left == []
    assert run_cli("reward", "--run", str(begun))[0] == 0
