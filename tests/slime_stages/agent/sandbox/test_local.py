"""Sandboxes on this machine, for real, by each way in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_stages.agent.sandbox.protocol import OUT_OF_TIME
from slime_stages.errors import DataError, MissingInputError, RetryableError
from slime_stages.isolation.enclosure import Bind
from slime_stages.isolation.guard import Way
from slime_stages.isolation.process_tree import descendants
from tests.slime_stages.agent.sandbox.local_sandboxes import (
    WAYS,
    is_alive,
    local_sandbox,
    wait_until,
)


async def test_a_daemon_lives_until_the_sandbox_ends_and_keeps_nobody_waiting() -> None:
    async with local_sandbox() as sandbox:
        assert await sandbox.exec("setsid sleep 74 & echo started") == (0, "started\n", "")
        assert (await sandbox.exec("pgrep -f 'sleep 7[4]'")).code == 0
        assert sandbox._guard is not None
        within = descendants(sandbox._guard.pid)

    assert wait_until(lambda: not any(map(is_alive, within)))


@pytest.mark.parametrize("way", WAYS)
async def test_a_folder_that_is_given_is_seen_and_only_a_writable_one_can_be_changed(way: Way, tmp_path: Path) -> None:
    for name in ("fixed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    binds = (
        Bind(source=str(tmp_path / "fixed"), target="/data/fixed"),
        Bind(source=str(tmp_path / "open"), target="/data/open", writable=True),
    )

    async with local_sandbox(way, binds=binds) as sandbox:
        completed = await sandbox.exec("cat /data/*/file; echo new > /data/open/file; echo new > /data/fixed/file")

    assert completed.stdout == "fixedopen"
    assert "Read-only file system" in completed.stderr
    assert (tmp_path / "open" / "file").read_text() == "new\n"
    assert (tmp_path / "fixed" / "file").read_text() == "fixed"


async def test_an_image_is_the_whole_system_and_what_is_changed_in_it_goes_away(tmp_path: Path) -> None:
    image = image_with_a_shell(tmp_path)
    (image / "testbed").mkdir()
    (image / "testbed" / "code.py").write_text("x = 1\n")

    async with local_sandbox(image=str(image), workdir="/testbed") as sandbox:
        assert await sandbox.exec("echo y >> code.py; read line < code.py; echo $line; echo /usr/*") == (
            0,
            "x = 1\n/usr/*\n",
            "",
        )

    assert (image / "testbed" / "code.py").read_text() == "x = 1\n"


def image_with_a_shell(tmp_path: Path) -> Path:
    """A system of nothing but `sh` and its libraries."""
    image = tmp_path / "image"
    libraries = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for path in ["/bin/sh", *(word for word in libraries.split() if word.startswith("/"))]:
        target = image / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(path).read_bytes())
        target.chmod(0o755)
    return image


@pytest.mark.parametrize("way", WAYS)
async def test_a_service_of_this_machine_is_reached_through_a_port_of_the_sandbox_alone(way: Way) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + request.split()[1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, local_sandbox(way) as sandbox:
        port = server.sockets[0].getsockname()[1]
        url = await sandbox.reach(f"http://127.0.0.1:{port}/v1")

        assert await sandbox.reach(f"http://127.0.0.1:{port}/v1") == url
        assert (await sandbox.exec(["curl", "-sm", "5", f"{url}/models"])).stdout == "/v1/models"
        assert (await sandbox.exec(f"curl -sm 5 http://127.0.0.1:{port}")).code == 7


async def test_a_service_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "a.sock")
    async with server, local_sandbox() as sandbox:
        url = await sandbox.reach(f"unix://{tmp_path}/a.sock")

        assert (await sandbox.exec(["curl", "-sm", "5", url])).stdout == "hello"


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_after_its_owner_is_killed(way: Way, tmp_path: Path) -> None:
    program = f"""
import asyncio
from tests.slime_stages.agent.sandbox.local_sandboxes import local_sandbox
async def main():
    async with local_sandbox({way!r}) as sandbox:
        await sandbox.exec("setsid sleep 75 & nohup sleep 76 > /dev/null 2>&1 &")
        print(sandbox._guard.pid, flush=True)
        await sandbox.exec("sleep 77")
asyncio.run(main())
"""
    mounts = Path("/proc/self/mounts").read_text()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        family = [pid, *descendants(pid)]
        owner.send_signal(signal.SIGKILL)

    assert len(family) >= 4  # the guard, the first process within, and the two that were left to themselves
    assert wait_until(lambda: not any(map(is_alive, family)))
    assert Path("/proc/self/mounts").read_text() == mounts


async def test_nothing_is_left_after_its_guard_is_killed() -> None:
    async with local_sandbox() as sandbox:
        await sandbox.exec("sleep 78 &")
        assert sandbox._guard is not None
        within = descendants(sandbox._guard.pid)
        sandbox._guard.kill()

        assert wait_until(lambda: not any(map(is_alive, within)))
        with pytest.raises(RetryableError, match="is gone: killed from outside"):
            await sandbox.exec("echo")


async def test_a_sandbox_ends_when_its_time_is_up() -> None:
    async with local_sandbox(lifetime_seconds=0.6) as sandbox:
        with pytest.raises(RetryableError, match=r"is gone: its time of 0\.6 s is up"):
            await sandbox.exec("sleep 79")


async def test_a_file_that_cannot_be_written_is_an_error_that_names_it() -> None:
    async with local_sandbox() as sandbox:
        with pytest.raises(DataError, match=r"/usr/a in local-\w+ cannot be transferred: .*Read-only file system"):
            await sandbox.write_file("/usr/a", "")


async def test_a_path_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="/none"):
        async with local_sandbox(binds=(Bind(source=f"{tmp_path}/none", target="/none"),)):
            pass


def test_a_sandbox_starts_where_the_package_is_found_by_other_means_than_the_path() -> None:
    program = """
import asyncio, os, sys
from slime_stages.agent.sandbox.local import LocalSandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
sys.path[:] = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "slime_stages"))]
async def main():
    async with LocalSandbox(SandboxSettings()) as sandbox:
        print((await sandbox.exec("echo within")).stdout)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "within"


def test_a_machine_that_shuts_nothing_in_is_told_of_with_what_to_ask_for() -> None:
    program = """
import asyncio
from slime_stages.agent.sandbox.local import LocalSandbox
from slime_stages.agent.sandbox.settings import SandboxSettings
async def main():
    async with LocalSandbox(SandboxSettings()):
        pass
try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__, error.message, error.hint, sep="\\n")
"""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable, "-c", program]

    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    kind, message, hint = ended.stdout.splitlines()[:3]
    assert kind == "UsageError"
    assert message.startswith(
        "this machine does not let a program be shut in: namespaces: unshare: No space left on device"
    )
    assert hint == "ask for the setting user.max_user_namespaces=10000"


async def test_a_fork_of_the_owner_keeps_nothing_alive() -> None:
    sandbox = local_sandbox()
    async with sandbox:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        started = time.monotonic()
        assert (await sandbox.exec("sleep 82", timeout=0.2)).code == OUT_OF_TIME
        assert (await sandbox.exec("sleep 0.2; pgrep -f 'sleep 8[2]'")).stdout == ""

    assert time.monotonic() - started < 10
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def test_a_service_learns_that_its_client_left_but_loses_no_answer_that_was_taken() -> None:
    heard: list[bytes] = []
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer\n")
        heard.append(await reader.read())  # the client has taken its line, and is gone
        writer.write(b"the end")
        await writer.drain()
        heard.append(await reader.read())
        writer.close()
        over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, local_sandbox() as sandbox:
        url = await sandbox.reach(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        port = url.rpartition(":")[2]
        completed = await sandbox.exec(f"exec 3<> /dev/tcp/127.0.0.1/{port}; read -r line <&3; echo $line")
        await asyncio.wait_for(over.wait(), 10)

    assert completed.stdout == "answer\n"
    assert heard == [b"", b""]
