"""Apptainer's command lines, through a stand-in and through the real one where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from slime_stages.agent.sandbox.protocol import OUT_OF_TIME
from slime_stages.agent.sandbox.settings import SandboxSettings
from slime_stages.errors import MissingInputError, RetryableError, UsageError
from slime_stages.isolation.enclosure import Bind
from tests.slime_stages.agent.sandbox import fake_apptainer
from tests.slime_stages.agent.sandbox.local_sandboxes import is_alive, wait_until
from tests.slime_stages.agent.sandbox.test_local import image_with_a_shell

REAL = [path for path in [shutil.which("apptainer")] if path is not None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in, which is the one `apptainer` in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "apptainer"
    program.write_text(f"#!{sys.executable}\n{Path(fake_apptainer.__file__).read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def calls(fake: Path) -> list[list[str]]:
    return [json.loads(line) for line in (fake / "calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("binary", ["stand-in", *REAL])
async def test_commands_run_in_an_instance(
    binary: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if binary in REAL:
        monkeypatch.setattr("slime_stages.agent.sandbox.apptainer._binary", lambda: binary)
    image = image_with_a_shell(tmp_path)

    async with ApptainerSandbox(SandboxSettings(image=str(image), workdir="/", network="host")) as sandbox:
        completed = await sandbox.exec(["sh", "-c", 'echo "$A $HOME"; exit 3'], user="agent", env={"A": "1"})
        late = await sandbox.exec(["sh", "-c", "read forever < /dev/zero"], timeout=0.5)

    assert completed == (3, "1 /home/agent\n", "")
    assert late.code == OUT_OF_TIME


async def test_the_instance_is_shut_off_from_all_that_is_not_given(fake: Path, tmp_path: Path) -> None:
    binds = (Bind(source="/a", target="/b"), Bind(source="/c", target="/d", writable=True))

    async with ApptainerSandbox(SandboxSettings(image=str(tmp_path), binds=binds)) as sandbox:
        await sandbox.exec(["true"])

    start, run, stop = calls(fake)
    assert start == [
        *("instance", "start", "--containall", "--cleanenv", "--no-home", "--writable-tmpfs", "--no-privs"),
        *("--net", "--network", "none", "--bind", "/a:/b:ro", "--bind", "/c:/d:rw"),
        *(str(tmp_path), sandbox.sandbox_id),
    ]
    assert run[:4] == ["exec", "--cleanenv", "--pwd", "/workspace"]
    assert run[-2:] == [f"instance://{sandbox.sandbox_id}", "true"]
    assert stop == ["instance", "stop", "--force", sandbox.sandbox_id]


async def test_files_go_in_and_out_of_an_instance(fake: Path, tmp_path: Path) -> None:
    settings = SandboxSettings(image=str(tmp_path), network="host")

    async with ApptainerSandbox(settings) as sandbox:
        await sandbox.write_file(f"{tmp_path}/within/a", b"\0\1")
        await sandbox.download(f"{tmp_path}/within", tmp_path / "out")
        assert await sandbox.reach("http://127.0.0.1:1") == "http://127.0.0.1:1"

    assert (tmp_path / "out" / "a").read_bytes() == b"\0\1"


def test_an_instance_is_stopped_when_its_owner_is_killed(fake: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
async def main():
    async with ApptainerSandbox(SandboxSettings(image={str(tmp_path)!r})) as sandbox:
        print(open({str(fake)!r} + "/" + sandbox.sandbox_id).read(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert wait_until(lambda: not is_alive(int(ended.stdout)))


async def test_an_instance_ends_when_its_time_is_up(fake: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    async with ApptainerSandbox(SandboxSettings(image=str(tmp_path), lifetime_seconds=1)) as sandbox:
        pid = int((fake / sandbox.sandbox_id).read_text())
        assert wait_until(lambda: not is_alive(pid))

    assert time.monotonic() - started < 10


async def test_what_cannot_be_had_is_said_at_once(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs an image"):
        ApptainerSandbox(SandboxSettings())
    with pytest.raises(MissingInputError, match="there is no image /none"):
        ApptainerSandbox(SandboxSettings(image="/none"))
    image = tmp_path / "image.sif"
    image.touch()
    gone = ApptainerSandbox(SandboxSettings(image=str(image)))
    image.unlink()
    with pytest.raises(RetryableError, match="could not open image"):
        async with gone:
            pass
    with pytest.raises(UsageError, match="without a network cannot reach"):
        await ApptainerSandbox(SandboxSettings(image=str(tmp_path))).reach("http://127.0.0.1:1")
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(UsageError, match="neither apptainer nor singularity"):
        ApptainerSandbox(SandboxSettings(image=str(tmp_path)))
