"""What Apptainer is asked for; `test_apptainer_real.py` and those of every kind ask it for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from slime_stages.agent.sandbox.apptainer_instance import Instance, options
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import MissingInputError, UsageError
from slime_stages.isolation.enclosure import Bind


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SIF file, beside a program `apptainer` that is alone in PATH."""
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/false\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "image.sif").touch()
    return str(tmp_path / "image.sif")


def test_an_instance_is_shut_off_from_all_that_is_not_given() -> None:
    binds = (Bind(source="/a,b", target="/b"), Bind(source="/c", target="/d", writable=True))

    assert options(SandboxSettings(binds=binds)) == [
        *("--containall", "--cleanenv", "--no-home", "--writable-tmpfs", "--no-privs"),
        *("--no-mount", "sys,hostfs,bind-paths", "--net", "--network", "none"),
        *("--mount", '"type=bind","source=/a,b","destination=/b","ro"'),
        *("--mount", '"type=bind","source=/c","destination=/d"'),
    ]
    assert options(SandboxSettings(network="host"))[-2:] == ["--no-mount", "sys,hostfs"]


def test_no_value_of_a_variable_stands_in_a_command_line(image: str) -> None:
    sandbox = ApptainerSandbox(SandboxSettings(image=image))
    program = sandbox._program(["run", "a b"], "agent", {"KEY": "secret", "TERM": "dumb"}, 1, 1)

    words = Instance("box", sandbox.settings).entry(program)

    assert words[1:9] == [
        *("--silent", "exec", "--no-privs", "--cleanenv", "--no-eval", "--pwd", "/workspace"),
        "instance://box",
    ]
    assert words[-4:] == ["sh", "/home/agent", "run", "a b"]
    assert "unset APPTAINER_APPNAME " in words[-5]
    assert " TERM" not in words[-5]
    assert "secret" not in " ".join(words)
    assert Instance("box", sandbox.settings).environment(program.environment)["APPTAINERENV_KEY"] == "secret"


def test_apptainer_hears_of_nothing_that_would_show_more(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_BIND", "SINGULARITY_BINDPATH", "APPTAINERENV_KEY", "SECRET", "APPTAINER_CACHEDIR"):
        monkeypatch.setenv(name, "set")

    environment = Instance("box", SandboxSettings(image=image)).environment({"HOME": "/root"})

    assert {name for name, value in environment.items() if value == "set"} == {"APPTAINER_CACHEDIR"}
    assert "APPTAINERENV_HOME" not in environment


def test_what_cannot_be_had_is_said_at_once(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs an image"):
        ApptainerSandbox(SandboxSettings())
    with pytest.raises(MissingInputError, match="there is no image /none"):
        ApptainerSandbox(SandboxSettings(image="/none"))
    with pytest.raises(UsageError, match="is a folder that Apptainer did not make"):
        ApptainerSandbox(SandboxSettings(image=str(tmp_path)))
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(UsageError, match="neither apptainer nor singularity"):
        ApptainerSandbox(SandboxSettings(image=image))
