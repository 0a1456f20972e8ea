from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_stages.serving import launch
from slime_stages.serving.installation import Installation
from slime_stages.serving.launch import STAND_INS, EngineOptions, has_accelerator, server_command, server_environment

CPU = EngineOptions(device="cpu")


def with_versions(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let the servers' interpreter have just these distributions."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    installation = Installation(python=(sys.executable,), versions=found, sglang_flags={}, router_flags={})
    monkeypatch.setattr(launch, "inspect_installation", lambda python: installation)


def words_after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_the_command_names_model_version_and_port(tiny_model: Path) -> None:
    command = server_command(CPU, tiny_model, "12", 30123)

    assert command[1:3] == ["-m", "sglang.launch_server"]
    assert words_after(command, "--model-path") == str(tiny_model)
    assert words_after(command, "--weight-version") == "12"
    assert words_after(command, "--port") == "30123"
    assert words_after(command, "--dtype") == "float32"
    assert "--enable-deterministic-inference" in command


def test_given_flags_win_over_the_defaults_of_a_cpu(tiny_model: Path) -> None:
    flags = {"dtype": "bfloat16", "enable_deterministic_inference": False}
    command = server_command(EngineOptions(device="cpu", flags=flags), tiny_model, "12", 1)

    assert words_after(command, "--dtype") == "bfloat16"
    assert "--enable-deterministic-inference" not in command


def test_a_gpu_server_gets_no_switch_of_a_cpu(tiny_model: Path) -> None:
    options = EngineOptions(device="gpu", layout={"tp_size": 4})

    command = server_command(options, tiny_model, "12", 1)
    environment = server_environment(options, tiny_model)

    assert words_after(command, "--tp-size") == "4"
    assert "--dtype" not in command
    assert "SGLANG_USE_CPU_ENGINE" not in environment
    assert str(STAND_INS) not in environment.get("PYTHONPATH", "")
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_without_a_gpu_caches_go_from_one_engine_to_another_over_tcp_unless_told_otherwise(tiny_model: Path) -> None:
    role = {"disaggregation_mode": "decode"}
    told = {"disaggregation_transfer_backend": "nixl"}

    alone = server_command(CPU, tiny_model, "12", 1)
    paired = server_command(EngineOptions(device="cpu", layout=role), tiny_model, "12", 1)
    with_nixl = server_command(EngineOptions(device="cpu", layout=role, flags=told), tiny_model, "12", 1)
    on_gpu = server_command(EngineOptions(device="gpu", layout=role), tiny_model, "12", 1)

    assert "--disaggregation-transfer-backend" not in alone
    assert words_after(paired, "--disaggregation-transfer-backend") == "mooncake_tcp"
    assert words_after(with_nixl, "--disaggregation-transfer-backend") == "nixl"
    assert "--disaggregation-transfer-backend" not in on_gpu


def test_stand_ins_are_for_packages_that_are_missing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with_versions(monkeypatch, torch="2.13.0+cpu")
    assert server_environment(CPU, tiny_model)["PYTHONPATH"].split(":") == [
        str(STAND_INS / name) for name in ("torchvision", "sgl_kernel", "plugin")
    ]

    with_versions(monkeypatch, torch="2.13.0+cpu", torchvision="0.28.0+cpu", sgl_kernel_cpu="0.4.0")
    assert server_environment(CPU, tiny_model)["PYTHONPATH"] == ""


def test_a_tiny_model_gets_one_thread_and_a_larger_one_half_the_cores(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: set(range(12)))
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(500 << 20)

    assert server_environment(CPU, tiny_model)["OMP_NUM_THREADS"] == "1"
    assert server_environment(CPU, tmp_path)["OMP_NUM_THREADS"] == "6"


def test_ranks_on_a_cpu_share_its_cores(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})

    environment = server_environment(EngineOptions(device="cpu", layout={"tp_size": 2}), tiny_model)

    assert environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0,1|2,3"


def test_a_hidden_gpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ACCELERATOR_DEVICES", ("/dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert has_accelerator()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_accelerator()
