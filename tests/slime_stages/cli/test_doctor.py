from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.main import get_command

from slime_stages.cli.doctor import command


def doctor(*words: str) -> int:
    single = typer.Typer(add_completion=False)
    single.command(cls=command.command_class)(command)  # type: ignore[attr-defined]
    code: int = get_command(single).main(list(words), standalone_mode=False)
    return code


@pytest.fixture
def sbatch(tmp_path: Path) -> Path:
    for stage in ("rollout", "reward", "train", "sync"):
        text = f'#!/bin/bash\n#SBATCH --time=10\nexec python -m stages.{stage} "$@"\n'
        (tmp_path / f"{stage}.sbatch").write_text(text)
    return tmp_path


def test_findings_are_lines_and_what_to_do_stands_below(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")

    code = doctor("--run", str(tmp_path), "--sbatch", str(sbatch), "--slurm-train-output", "train.log")

    assert code == 2
    lines = capsys.readouterr().out.splitlines()
    refusal = lines.index("problem --slurm-train-output: --output is set by slime-stages")
    assert lines[refusal + 1].startswith("        → remove it: ")
    assert f"ok      {sbatch}/sync.sbatch can be read; only sbatch knows whether it is accepted" in lines
    assert lines[-2].startswith("problem there is no SLURM on this machine")
