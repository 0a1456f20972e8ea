from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.cli import main as cli
from slime_stages.config.fields import fields, sections
from slime_stages.run.rundir import RunDir
from tests.slime_stages.config.settings import resolved

SMALLEST = ["--hf-checkpoint", "/model", "--prompt-data", "/p.jsonl", "--rollout-batch-size", "4"]


def test_help_shows_every_setting_below_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--help"]) == 0

    text = capsys.readouterr().out
    assert all(f"\n[{name}] {section.title}:\n" in text for name, section in sections().items())
    for setting in fields().values():
        assert f"  {setting.flag}" in text
    assert "--apply-chat-template / --no-apply-chat-template\n" in text
    assert "--advantage-estimator grpo|gspo|cispo" in text
    assert "--sglang-NAME [VALUE ...]" in text
    assert "[default: 1e-06]" in " ".join(text.split())


def test_settings_stand_anywhere_among_the_commands_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--rollout-stop", "a", "b", "--explain", *SMALLEST, "--sglang-log-level", "info"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rollout_stop", "=", '["a",', '"b"]', "#", "--rollout-stop"] in lines
    assert ["log_level", "=", '"info"', "#", "--sglang-log-level"] in lines


def test_a_file_and_flags_make_one_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("[optimizer]\nlr = 2e-6\n")

    assert cli.main(["config", "--config", str(tmp_path / "c.toml"), *SMALLEST]) == 0

    assert "\nlr = 2e-06\n" in capsys.readouterr().out


def test_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", *SMALLEST, "--tis-clip", "3"])

    assert "warning: tis_clip (--tis-clip) has no effect without use_tis\n" in capsys.readouterr().err


def test_the_config_of_a_run_is_the_frozen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    run.config_path.write_bytes(resolved(lr=3e-6).config.to_json_bytes())

    assert cli.main(["config", "--run", str(run.root), "--explain"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lr", "=", "3e-06", "#", str(run.config_path)] in lines
    assert ["seed", "=", "1234", "#", "default"] in lines


def test_the_config_of_a_run_takes_no_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--run", str(tmp_path), "--lr", "1"]) == 2

    assert f"error: the settings of {tmp_path} are frozen" in capsys.readouterr().err
