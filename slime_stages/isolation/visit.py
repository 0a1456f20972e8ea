"""Go into a container that this user's processes made, and do there what nobody within may (Linux).

Whoever made a namespace of users has every right in it, as root has everywhere; where a setuid program made the
container, its user has none, and gets an OSError. Each visit is a program of its own: entering such a namespace
takes a process with one thread, and there is no way back.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from slime_stages.isolation import programs
from slime_stages.isolation import syscalls as system
from slime_stages.isolation.enclosure import KERNEL_CONTROLS

_SAFE = system.MS_NOSUID | system.MS_NODEV
_SHARED_MEMORY = "/dev/shm"


def restrict(pid: int, *, disk_bytes: int, file_count: int) -> None:
    """Limit what a container holds in memory as files, and leave the kernel's controls to be read alone.

    `pid` is any process within. Apptainer keeps all that is written there in one tmpfs, which /tmp shows too, but
    for /dev/shm.
    """
    _visit({"task": "restrict", "pid": pid, "disk_bytes": disk_bytes, "file_count": file_count})


def listen(pid: int) -> socket.socket:
    """A socket that listens on a port of a container's own loopback."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _visit({"task": "listen", "pid": pid, "report": theirs.fileno()}, theirs.fileno())
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
        return socket.socket(fileno=descriptors[0])


def main(given: dict[str, Any]) -> None:
    """Carry out one task, in a process with one thread, or print why that is refused."""
    try:
        if given["task"] == "listen":
            _listen(given["pid"], given["report"])
        else:
            _restrict(given["pid"], given["disk_bytes"], given["file_count"])
    except OSError as error:
        print(error.strerror)


def _visit(given: dict[str, Any], *descriptors: int) -> None:
    answer = subprocess.run(
        programs.COMMAND,
        input=programs.request(__name__, **given),
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        check=True,
    )
    if reason := answer.stdout.decode().strip():
        raise OSError(reason)


def _enter(pid: int, name: str, kind: int) -> bool:
    """Whether the users within are others than this process's own."""
    own, theirs = os.stat("/proc/self/ns/user"), os.stat(f"/proc/{pid}/ns/user")
    users, other = (os.open(f"/proc/{pid}/ns/{each}", os.O_RDONLY) for each in ("user", name))
    has_own_users = own.st_ino != theirs.st_ino
    if has_own_users:
        system.enter(users, system.NEW_USER)
    system.enter(other, kind)
    return has_own_users


def _restrict(pid: int, disk_bytes: int, file_count: int) -> None:
    has_own_users = _enter(pid, "mnt", system.NEW_MOUNTS)
    system.mount("none", "/tmp", None, system.MS_REMOUNT | _SAFE, f"size={disk_bytes},nr_inodes={file_count}")
    shared = "/dev/.shm"
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    system.mount(shared, _SHARED_MEMORY, flags=system.MS_BIND)
    system.set_mount_flags(_SHARED_MEMORY, _SAFE)
    system.set_mount_flags("/", system.MS_NOSUID)
    if has_own_users:  # else the whole machine would lose them
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    for path in [f"/proc/{name}" for name in KERNEL_CONTROLS if os.path.exists(f"/proc/{name}")]:
        system.mount(path, path, flags=system.MS_BIND | system.MS_REC)
        system.set_mount_flags(path, system.MS_RDONLY)


def _listen(pid: int, report: int) -> None:
    _enter(pid, "net", system.NEW_NETWORK)
    system.raise_loopback()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        socket.send_fds(socket.socket(fileno=report), [b"listening"], [server.fileno()])
