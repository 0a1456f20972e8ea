from __future__ import annotations

import os
import resource
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from slime_stages import __version__
from slime_stages.cli import main as cli
from slime_stages.drain import Drained
from slime_stages.errors import DataError

HEAVY = ("torch", "pyarrow", "submitit", "pydantic", "numpy", "rich", "transformers", "slime_stages.config")


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command `pretend` whose function the test sets."""
    module = ModuleType("pretend_command")
    monkeypatch.setitem(sys.modules, "pretend_command", module)
    monkeypatch.setitem(cli.COMMANDS, "status", ("pretend_command:command", "Pretend."))
    return module


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from slime_stages.cli.main import main; main(['--help']); "
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert all(f"  {name}" in done.stdout for name in cli.COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]
    assert done.stderr == "[]\n"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6  # seconds; 0.1 on a quiet machine


def test_an_error_of_ours_is_a_message_a_hint_and_its_code(
    pretend: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise DataError("shard 3 is cut short", hint="slime-stages rollout --shard 3 --force")

    pretend.command = command  # type: ignore[attr-defined]

    assert cli.main(["status"]) == 65
    assert capsys.readouterr().err == "error: shard 3 is cut short\n\nhint: slime-stages rollout --shard 3 --force\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("odd"), 70, "ValueError: odd"),
        (EOFError("torn"), 70, "EOFError: torn"),
        (BrokenPipeError("engine hung up"), 70, "a connection broke: engine hung up"),
        (KeyboardInterrupt(), 130, ""),
        (Drained("SIGINT"), 75, "error: drained (SIGINT): what is committed stays, the same command does the rest"),
    ],
)
def test_what_nobody_expected_shows_where_it_happened(
    pretend: ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    def command() -> None:
        raise error

    pretend.command = command  # type: ignore[attr-defined]

    assert cli.main(["status"]) == code
    assert text in capsys.readouterr().err


def test_what_fails_after_a_signal_to_end_is_no_fault_of_anybody(
    pretend: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise AttributeError("partially initialized module")

    pretend.command = command  # type: ignore[attr-defined]
    monkeypatch.setattr(cli, "drain_reason", lambda: "SIGTERM")

    assert cli.main(["status"]) == 75
    assert capsys.readouterr().err == "error: drained (SIGTERM): AttributeError: partially initialized module\n"


def test_a_command_may_choose_its_exit_code(pretend: ModuleType) -> None:
    import typer

    def command() -> None:
        raise typer.Exit(3)

    pretend.command = command  # type: ignore[attr-defined]

    assert cli.main(["status"]) == 3


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["confg"], "no such command 'confg'", "did you mean config?"),
        (["xyzzy"], "no such command 'xyzzy'", "slime-stages --help"),
        (["--foo"], "no such option: --foo", "slime-stages --help"),
        (["config", "--lrr", "3"], "no such option: --lrr", "did you mean --lr?"),
        (["config", "--explian"], "no such option: --explian", "did you mean --explain?"),
        (["config", "stray"], "got unexpected extra argument", "slime-stages config --help"),
    ],
)
def test_a_wrong_command_line_names_the_likely_one(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str, hint: str
) -> None:
    assert cli.main(words) == 2

    text = capsys.readouterr().err
    assert text.startswith(f"error: {message}")
    assert text.endswith(f"\n\nhint: {hint}\n")


def test_without_words_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: slime-stages")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"slime-stages {__version__}\n"


def test_a_reader_that_hangs_up_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done: Any = subprocess.run(
        [sys.executable, "-m", "slime_stages.cli.main", "--help"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)

    assert done.returncode == 141
    assert done.stderr == b""
