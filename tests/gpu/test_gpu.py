"""The checks that need a device, for `make test-gpu`; and what they say where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.check import main


@pytest.mark.gpu
def test_the_trainer_is_right_on_a_gpu() -> None:
    assert main([]) == 0


def test_a_machine_without_a_device_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert main([]) == 2

    assert "error: no CUDA device" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_checks_pass_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--on-cpu"]) == 0, capsys.readouterr().out
