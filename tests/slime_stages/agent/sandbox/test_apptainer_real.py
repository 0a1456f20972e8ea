"""Apptainer itself. What it does as every kind does is in `test_every_kind.py` and `test_escapes.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.agent.harness.base import ensure_agent_user
from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from slime_stages.errors import RetryableError, UsageError
from slime_stages.isolation.enclosure import Bind
from slime_stages.isolation.process_tree import descendants
from tests.slime_stages.agent.sandbox.apptainer_install import Installation
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL, is_alive, wait_until
from tests.slime_stages.agent.sandbox.test_local import image_with_a_shell

pytestmark = pytest.mark.slow
Open = Callable[..., ApptainerSandbox]


@pytest.fixture
def open_box(apptainer: Installation, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setenv("PATH", f"{apptainer.folder}:{os.environ['PATH']}")
    own = dataclasses.replace(SMALL, image=str(apptainer.image))
    return lambda **changes: ApptainerSandbox(dataclasses.replace(own, **changes))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process keeps temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


async def test_a_sif_file_is_the_whole_system(open_box: Open, scratch: Path) -> None:
    folder = image_with_a_shell(scratch)
    sif = scratch / "image.sif"
    subprocess.run(["apptainer", "--silent", "build", str(sif), str(folder)], check=True)

    async with open_box(image=str(sif)) as sandbox:
        completed = await sandbox.exec(["sh", "-c", "pwd; echo new > file; read line < file; echo $line; echo /usr/*"])

    assert completed == (0, "/workspace\nnew\n/usr/*\n", "")
    assert sorted(path.name for path in scratch.iterdir()) == ["image", "image.sif"]


async def test_what_is_changed_in_an_image_goes_away(open_box: Open, apptainer: Installation) -> None:
    async with open_box(workdir="/opt") as sandbox:
        written = await sandbox.exec("echo x > file; rm /usr/bin/yes; ls; command -v yes")

    assert written.stdout == "file\n"
    assert not (apptainer.image / "opt" / "file").exists()
    assert (apptainer.image / "usr" / "bin" / "yes").exists()


async def test_what_is_given_is_seen_and_nothing_that_the_environment_adds(
    open_box: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fixed", "o,p:en", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    for name in ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH"):
        monkeypatch.setenv(name, f"{tmp_path}/other")
    binds = (
        Bind(source=str(tmp_path / "fixed"), target="/data/fixed"),
        Bind(source=str(tmp_path / "o,p:en"), target="/data/open", writable=True),
    )

    async with open_box(binds=binds) as sandbox:
        completed = await sandbox.exec(
            f"cat /data/*/file; echo new > /data/open/file; echo new > /data/fixed/file; ls {tmp_path}/other"
        )

    assert completed.stdout == "fixedo,p:en"
    assert "Read-only file system" in completed.stderr
    assert "No such file or directory" in completed.stderr
    assert (tmp_path / "o,p:en" / "file").read_text() == "new\n"
    assert (tmp_path / "fixed" / "file").read_text() == "fixed"


async def test_all_that_is_written_shares_the_limit_and_files_have_one_too(open_box: Open) -> None:
    async with open_box(disk_bytes=4 << 20, file_count=200) as sandbox:
        await sandbox.exec(
            "head -c 3M /dev/zero > /tmp/a; head -c 3M /dev/zero > /dev/shm/b; head -c 3M /dev/zero > /c"
        )
        sizes = await sandbox.exec("cat /tmp/a /dev/shm/b /c | wc -c; rm /tmp/a /dev/shm/b /c")
        many = await sandbox.exec("for i in $(seq 300); do echo > /var/tmp/$i || exit 9; done")

    assert 3 << 20 < int(sizes.stdout) <= 4 << 20
    assert many.code == 9


async def test_a_service_of_this_machine_is_reached_through_a_port_of_the_sandbox_alone(open_box: Open) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + request.split()[1])
        await writer.drain()
        writer.close()

    ask = r"exec 3<> /dev/tcp/127.0.0.1/{port}; printf 'GET /v1/models HTTP/1.0\r\n\r\n' >&3; tail -n 1 <&3"
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with open_box() as sandbox:
            url = await sandbox.reach(f"http://127.0.0.1:{port}/v1")
            own = url.removeprefix("http://127.0.0.1:").removesuffix("/v1")
            assert await sandbox.reach(f"http://127.0.0.1:{port}/v1") == url
            assert (await sandbox.exec(ask.format(port=own))).stdout == "/v1/models"
            assert "Connection refused" in (await sandbox.exec(ask.format(port=port))).stderr
        async with open_box(network="host") as sandbox:
            assert await sandbox.reach(f"http://127.0.0.1:{port}/v1") == f"http://127.0.0.1:{port}/v1"
            assert (await sandbox.exec(ask.format(port=port))).stdout == "/v1/models"


async def test_an_agent_finds_a_home_and_a_folder_to_work_in(open_box: Open) -> None:
    async with open_box(workdir="/testbed") as sandbox:
        await ensure_agent_user(sandbox, "/testbed")
        await sandbox.write_file("/home/agent/.claude.json", "{}", "agent")
        completed = await sandbox.exec("cat ~/.claude.json; echo x > file && cat file", user="agent")

    assert completed == (0, "{}x\n", "")


def test_nothing_is_left_after_its_owner_is_killed(open_box: Open, scratch: Path, apptainer: Installation) -> None:
    program = f"""
import asyncio
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL
from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
import dataclasses
import json
async def main():
    async with ApptainerSandbox(dataclasses.replace(SMALL, image={str(apptainer.image)!r})) as sandbox:
        await sandbox.exec("setsid sleep 75 & nohup sleep 76 > /dev/null 2>&1 &")
        print(sandbox._instance.first, flush=True)
        await sandbox.exec("sleep 77")
asyncio.run(main())
"""
    mounts = Path("/proc/self/mounts").read_text()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        first = int(owner.stdout.readline())
        assert wait_until(lambda: len(descendants(owner.pid)) >= 2)
        family = [first, *descendants(first), *descendants(owner.pid)]
        owner.send_signal(signal.SIGKILL)

    assert len(family) >= 5  # with the two that were left to themselves, the one that waits, and `sleep 77`
    assert wait_until(lambda: not any(map(is_alive, family)), seconds=20)
    assert wait_until(lambda: list(scratch.iterdir()) == [], seconds=20)
    assert Path("/proc/self/mounts").read_text() == mounts


async def test_nothing_is_left_of_a_start_that_is_given_up(open_box: Open, scratch: Path) -> None:
    sandbox = open_box()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15), sandbox:
            pass

    assert list(scratch.iterdir()) == []
    named = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if is_named(sandbox.sandbox_id, path)]
    assert named == []


def is_named(text: str, path: Path) -> bool:
    try:
        return text in path.read_bytes().decode(errors="replace")
    except OSError:
        return False


async def test_a_sandbox_ends_when_its_time_is_up(open_box: Open, scratch: Path) -> None:
    async with open_box(lifetime_seconds=5) as sandbox:
        with pytest.raises(RetryableError, match=r"is gone: its time of 5 s is up"):
            await sandbox.exec("sleep 79")
        with pytest.raises(RetryableError, match=r"is gone: its time of 5 s is up"):
            await sandbox.exec("echo")

    assert list(scratch.iterdir()) == []


async def test_a_sandbox_that_is_killed_is_told_of(open_box: Open) -> None:
    async with open_box() as sandbox:
        os.kill(sandbox._instance.first, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(RetryableError, match="is gone: killed from outside"):
            await sandbox.exec("sleep 80")

    assert time.monotonic() - started < 20


async def test_a_folder_that_apptainer_did_not_make_is_refused_with_what_to_type(
    open_box: Open, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is a folder that Apptainer did not make") as caught:
        open_box(image=str(tmp_path))
    assert caught.value.hint is not None
    assert f"apptainer build --sandbox NEW {tmp_path}" in caught.value.hint


async def test_an_image_that_does_not_start_is_an_error_with_its_words(open_box: Open, scratch: Path) -> None:
    (scratch / "image.sif").write_text("no image")

    with pytest.raises(RetryableError, match=r"image\.sif \S+` ended with 255: .*image format not recognized"):
        async with open_box(image=str(scratch / "image.sif")):
            pass

    assert [path.name for path in scratch.iterdir()] == ["image.sif"]


_AS_USER = """
import asyncio, dataclasses, json
from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL

async def answer(reader, writer):
    writer.write(b"hello")
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with ApptainerSandbox(dataclasses.replace(SMALL, image=IMAGE, disk_bytes=4 << 20)) as sandbox:
        url = await sandbox.reach(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        said = {
            "status": await sandbox.exec("cat /proc/self/status"),
            "filled": await sandbox.exec("head -c 8M /dev/zero > a; stat -c %s a; rm a; pwd"),
            "bomb": await sandbox.exec(["python3", "-c", BOMB], timeout=20),
            "late": await sandbox.exec("(setsid sleep 71.5 &); sleep 72.5", timeout=1),
            "after": await sandbox.exec("pgrep -f 'sleep 7[12].5'; unshare --user true"),
            "reached": await sandbox.exec(f"cat < /dev/tcp/127.0.0.1/{url.rpartition(':')[2]}"),
        }
    print(json.dumps(said))

asyncio.run(main())
"""


def test_all_of_it_holds_for_a_user_without_any_rights(open_box: Open, apptainer: Installation) -> None:
    bomb = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(30)\n    time.sleep(0.001)"
    program = _AS_USER.replace("IMAGE", repr(str(apptainer.image))).replace("BOMB", repr(bomb))

    with tempfile.TemporaryDirectory() as home:
        command = apptainer.as_user(program, Path(home))
        ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert "NoNewPrivs:\t1" in said["status"][1]
    assert "CapEff:\t0000000000000000" in said["status"][1]
    size, folder = said["filled"][1].split()
    assert 3 << 20 < int(size) <= 4 << 20
    assert folder == "/workspace"
    assert said["bomb"][0] in (1, 137)
    assert said["late"][0] == 124
    assert said["after"][1] == ""
    assert "No space left on device" in said["after"][2]  # there are no further namespaces of users
    assert said["reached"][1] == "hello"


def test_keys_that_a_login_brings_along_stay_outside(open_box: Open, apptainer: Installation) -> None:
    """The owner puts one into its session's keyring, and finds it there; a program within does not."""
    library = "import ctypes; c = ctypes.CDLL(None, use_errno=True)"
    numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    find = f"print(c.syscall({numbers[1]}, 10, -3, b'user', b'ticket', 0) > 0)"
    find_within = f"@key = ('user', 'ticket'); print(syscall({numbers[1]}, 10, -3, @key, 0) > 0 ? 'True' : 'False')"
    program = f"""
{library}
import asyncio, dataclasses
from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL
c.syscall({numbers[1]}, 1, None)
c.syscall({numbers[0]}, b"user", b"ticket", b"secret", 6, -3)
{find}
async def main():
    async with ApptainerSandbox(dataclasses.replace(SMALL, image={str(apptainer.image)!r})) as sandbox:
        print((await sandbox.exec(["perl", "-e", {find_within!r}])).stdout)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.split() == ["True", "False"]
