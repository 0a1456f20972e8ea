"""Each command is what somebody within tries."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from slime_stages.agent.sandbox.archive import extract_files
from slime_stages.errors import DataError
from slime_stages.isolation.guard import Way
from tests.slime_stages.agent.sandbox.local_sandboxes import WAYS, OpenBox, local_sandbox

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


async def test_the_network_is_not_there(shut_box: OpenBox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with shut_box() as sandbox:
            local = await sandbox.exec(f"exec 3<> /dev/tcp/127.0.0.1/{port}")
            remote = await sandbox.exec("exec 3<> /dev/tcp/192.0.2.1/80")

    assert "Connection refused" in local.stderr
    assert "Network is unreachable" in remote.stderr


async def test_no_file_of_the_machine_is_in_sight(shut_box: OpenBox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")

    async with shut_box() as sandbox:
        tried = await sandbox.exec(f"cat {secret} {Path(__file__)} /proc/1/root{secret}; ls -A /root /home/* /tmp")

    assert tried.stdout == "/home/agent:\n\n/root:\n\n/tmp:\n"
    assert tried.stderr.count("No such file") + tried.stderr.count("Permission denied") == 3


async def test_nothing_of_the_environment_or_of_the_command_lines_outside_is_told(
    shut_box: OpenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "APPTAINERENV_SECRET", "SINGULARITYENV_SECRET"):
        monkeypatch.setenv(name, "hush")

    async with shut_box() as sandbox:
        seen = await sandbox.exec("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'")

    assert "hush" not in seen.stdout


@pytest.mark.parametrize("way", WAYS)
async def test_passwords_and_the_first_process_are_kept_from_sight(way: Way) -> None:
    async with local_sandbox(way) as sandbox:
        tried = await sandbox.exec("cat /etc/shadow /proc/1/environ")

    assert tried.stdout == ""
    assert "/etc/shadow: No such file" in tried.stderr
    assert "/proc/1/environ: Permission denied" in tried.stderr


async def test_no_process_of_the_machine_is_in_sight_or_can_be_ended(shut_box: OpenBox) -> None:
    async with shut_box() as sandbox:
        seen = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
        tried = await sandbox.exec(f"kill -9 {os.getpid()}")
        await sandbox.exec("kill -9 1; kill -9 -1")
        after = await sandbox.exec("echo alive")

    assert int(seen.stdout) < 8
    assert "No such process" in tried.stderr
    assert after.stdout == "alive\n"


async def test_the_kernel_takes_no_orders(shut_box: OpenBox) -> None:
    """Writes what is there already: where the user outside is root, the kernel alone would let it through."""
    pattern = CORE_PATTERN.read_text().strip()

    async with shut_box() as sandbox:
        tried = await sandbox.exec(["sh", "-c", f'printf "%s" "$0" > {CORE_PATTERN}', pattern])
        others = await sandbox.exec("echo h > /proc/sysrq-trigger; echo 1 > /proc/sys/kernel/sysrq; mknod /tmp/m c 1 1")

    assert "Read-only file system" in tried.stderr
    assert others.code != 0
    assert len(others.stderr.splitlines()) == 3


async def test_the_view_cannot_be_undone(shut_box: OpenBox) -> None:
    attempts = (
        "mount -o remount,rw,bind /usr",
        "mount -t tmpfs none /tmp",
        "umount -l /proc/sys",
        "unshare --user --map-root-user true",
        "chroot /tmp true",
        "nsenter --target 1 --mount true",
    )

    async with shut_box() as sandbox:
        codes = [(await sandbox.exec(attempt)).code for attempt in attempts]

    assert 0 not in codes


@pytest.mark.parametrize("way", WAYS)
async def test_the_programs_of_the_machine_cannot_be_changed(way: Way) -> None:
    async with local_sandbox(way) as sandbox:
        tried = await sandbox.exec("touch /usr/file; touch /file")

    assert tried.stderr.count("Read-only file system") + tried.stderr.count("Permission denied") == 2


async def test_no_program_gains_rights(shut_box: OpenBox) -> None:
    async with shut_box() as sandbox:
        status = (await sandbox.exec("cat /proc/self/status")).stdout
        mounts = (await sandbox.exec("cat /proc/self/mounts")).stdout
        marked = await sandbox.exec("id -u; cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && /tmp/id -u")

    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    honoured = [line.split()[1] for line in mounts.splitlines() if "nosuid" not in line]
    assert all(path.startswith("/dev/") for path in honoured)  # single devices
    before, after = marked.stdout.split()
    assert before == after


async def test_processes_without_end_are_stopped_and_the_sandbox_goes_on(shut_box: OpenBox) -> None:
    bomb = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(30)\n    time.sleep(0.001)"

    async with shut_box(process_count=24) as sandbox:
        ended = await sandbox.exec(["python3", "-c", bomb], timeout=20)

        assert ended.code in (1, 137)  # the kernel refuses to start one, or all are killed
        assert int((await sandbox.exec("sleep 0.2; ls -d /proc/[0-9]* | wc -l")).stdout) < 24


async def test_the_disk_is_full_at_its_limit(shut_box: OpenBox) -> None:
    async with shut_box(disk_bytes=4 << 20) as sandbox:
        filled = await sandbox.exec("dd if=/dev/zero of=/workspace/a bs=1M count=64; stat -c %s /workspace/a")
        assert "No space left on device" in filled.stderr
        assert 3 << 20 < int(filled.stdout) <= 4 << 20

        await sandbox.exec("rm a")
        assert (await sandbox.exec("echo works > a && cat a")).stdout == "works\n"


async def test_all_scratch_folders_share_the_limit_and_files_have_one_too() -> None:
    async with local_sandbox(disk_bytes=4 << 20, file_count=100) as sandbox:
        await sandbox.exec("head -c 3M /dev/zero > /tmp/a; head -c 3M /dev/zero > /dev/shm/b", check=False)
        sizes = await sandbox.exec("cat /tmp/a /dev/shm/b | wc -c; rm /tmp/a /dev/shm/b")
        many = await sandbox.exec("for i in $(seq 200); do echo > /var/tmp/$i || exit 9; done")

    assert int(sizes.stdout) <= 4 << 20
    assert many.code == 9


async def test_the_largest_process_is_killed_when_memory_runs_out(shut_box: OpenBox) -> None:
    async with shut_box(memory_bytes=150 << 20) as sandbox:
        ended = await sandbox.exec(["python3", "-c", "import time\nx = b'1' * (400 << 20)\ntime.sleep(20)"], timeout=30)

        assert ended.code == 137
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_link_within_leads_no_transfer_out(shut_box: OpenBox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")

    async with shut_box() as sandbox:
        await sandbox.exec(f"ln -s {tmp_path} folder; ln -s {outside} file; mkdir real; echo in > real/file")
        with pytest.raises(DataError):
            await sandbox.write_file("/workspace/folder/outside", "lost")
        assert await sandbox.read_file("/workspace/file") == ""
        await sandbox.download("/workspace", tmp_path / "out")

    assert outside.read_text() == "kept"
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["file", "real"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/evil", tarfile.REGTYPE), ("a/../../evil", tarfile.DIRTYPE)],
)
def test_an_archive_that_names_a_place_outside_is_refused(name: str, kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names"):
        extract_files(archive_of((name, kind, "")), tmp_path / "out")

    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_links_and_devices_of_an_archive_are_left_out(tmp_path: Path) -> None:
    content = archive_of(
        ("out", tarfile.SYMTYPE, str(tmp_path)),
        ("out/evil", tarfile.REGTYPE, ""),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", tarfile.CHRTYPE, ""),
    )

    extract_files(content, tmp_path / "target")

    assert not (tmp_path / "evil").exists()
    assert (tmp_path / "target" / "out" / "evil").is_file()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["out"]


def test_a_broken_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no archive"):
        extract_files(b"x" * 2000, tmp_path / "out")


def archive_of(*members: tuple[str, bytes, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return content.getvalue()


@pytest.mark.parametrize("way", WAYS)
def test_keys_that_a_login_brings_along_stay_outside(way: Way) -> None:
    """The owner puts one into its session's keyring, and finds it there; a program within does not."""
    library = "import ctypes; c = ctypes.CDLL(None, use_errno=True)"
    numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    find = f"print(c.syscall({numbers[1]}, 10, -3, b'user', b'ticket', 0) > 0)"
    program = f"""
{library}
import asyncio
from tests.slime_stages.agent.sandbox.local_sandboxes import OpenBox, local_sandbox
c.syscall({numbers[1]}, 1, None)
c.syscall({numbers[0]}, b"user", b"ticket", b"secret", 6, -3)
{find}
async def main():
    async with local_sandbox({way!r}) as sandbox:
        print((await sandbox.exec(["python3", "-c", {f"{library}; {find}"!r}])).stdout)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.split() == ["True", "False"]
