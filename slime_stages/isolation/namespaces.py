"""Shut a program in by user namespaces, which need no rights (Linux).

`leave_machine` moves the calling process and what it starts from then on out of the machine's users and process
table; `shut_in`, in the first process of the new table, does the rest: files, network, and no rights ever after.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from slime_stages.isolation import syscalls as system
from slime_stages.isolation.enclosure import KERNEL_CONTROLS, USER, Bind, Enclosure, view_of

_SAFE = system.MS_NOSUID | system.MS_NODEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_HIDDEN_BY = "/tmp"
"""A folder that every machine has; the new root is put together on top of it."""


def leave_machine() -> None:
    """A user namespace with one user, and a process table for the children; OSError where it is not allowed."""
    user, group = os.geteuid(), os.getegid()
    system.leave_keyring()
    system.unshare(system.NEW_USER | system.NEW_PROCESSES)
    Path("/proc/self/setgroups").write_text("deny")
    # Any number but 0 loses all capabilities when a program starts, so that it cannot undo what follows.
    Path("/proc/self/uid_map").write_text(f"{USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {group} 1")


def shut_in(enclosure: Enclosure) -> None:
    """In the first process of the table: see the enclosure's files and nothing else, and have no rights."""
    network = 0 if enclosure.has_network else system.NEW_NETWORK
    system.unshare(system.NEW_MOUNTS | system.NEW_IPC | system.NEW_NAMES | network)
    socket.sethostname("sandbox")
    if network:
        system.raise_loopback()
    with suppress(OSError):  # some containers mount it read-only
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    _build_root(enclosure)
    system.give_up_rights()


def _build_root(enclosure: Enclosure) -> None:
    view = view_of(enclosure)
    system.mount("none", "/", flags=system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", _HIDDEN_BY, "tmpfs", _SAFE, "mode=0755")
    for name in ("old", "new", "scratch"):
        os.mkdir(f"{_HIDDEN_BY}/{name}")
    system.move_root(_HIDDEN_BY, f"{_HIDDEN_BY}/old")
    system.mount(
        "tmpfs",
        "/scratch",
        "tmpfs",
        _SAFE,
        f"mode=0755,size={enclosure.scratch_bytes},nr_inodes={enclosure.scratch_files}",
    )
    _mount_base(enclosure.image)
    for path, target in view.links.items():
        os.symlink(target, f"/new{path}")
    for path, content in view.files.items():
        _parent(path)
        Path(f"/new{path}").write_text(content)
    for folder in enclosure.scratch:
        _mount_scratch(folder)
    for bind in view.binds:
        _bind(bind)
    _mount_kernel()
    if enclosure.image is None:
        system.set_mount_flags("/new", system.MS_RDONLY, recursive=False)
    system.make_root("/new")


def _mount_base(image: str | None) -> None:
    if image is None:
        system.mount("tmpfs", "/new", "tmpfs", _SAFE, "mode=0755,size=1m")
        return
    os.mkdir("/scratch/changes")
    os.mkdir("/scratch/work")
    folders = f"lowerdir=/old{os.path.realpath(image)},upperdir=/scratch/changes,workdir=/scratch/work,userxattr"
    system.mount("overlay", "/new", "overlay", _SAFE, folders)


def _mount_scratch(folder: str) -> None:
    own = f"/scratch/{folder.strip('/').replace('/', '-')}"
    os.mkdir(own)
    os.makedirs(f"/new{folder}", exist_ok=True)
    system.mount(own, f"/new{folder}", flags=system.MS_BIND)


def _bind(bind: Bind) -> None:
    source, target = f"/old{bind.source}", f"/new{bind.target}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        _parent(bind.target)
        Path(target).touch()
    system.mount(source, target, flags=system.MS_BIND | system.MS_REC)
    system.set_mount_flags(target, _SAFE if bind.writable else _SAFE | system.MS_RDONLY)


def _mount_kernel() -> None:
    for name in ("proc", "dev"):
        os.makedirs(f"/new/{name}", exist_ok=True)
    try:
        system.mount("proc", "/new/proc", "proc", _SAFE | system.MS_NOEXEC)
    except OSError:  # within some containers; without any /proc the others are out of sight, too
        system.mount("tmpfs", "/new/proc", "tmpfs", _SAFE | system.MS_NOEXEC, "size=4k,mode=0555")
    for path in [f"/new/proc/{name}" for name in KERNEL_CONTROLS if os.path.exists(f"/new/proc/{name}")]:
        system.mount(path, path, flags=system.MS_BIND | system.MS_REC)
        system.set_mount_flags(path, system.MS_RDONLY)
    system.mount("tmpfs", "/new/dev", "tmpfs", system.MS_NOSUID, "mode=0755,size=64k")
    for name in _DEVICES:
        Path(f"/new/dev/{name}").touch()
        system.mount(f"/old/dev/{name}", f"/new/dev/{name}", flags=system.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/new/dev/{name}")
    os.mkdir("/new/dev/pts")
    system.mount("devpts", "/new/dev/pts", "devpts", system.MS_NOSUID | system.MS_NOEXEC, "newinstance,ptmxmode=0666")
    os.mkdir("/new/dev/shm")
    os.mkdir("/scratch/shm")
    system.mount("/scratch/shm", "/new/dev/shm", flags=system.MS_BIND)
    system.set_mount_flags("/new/dev", system.MS_RDONLY, recursive=False)


def _parent(path: str) -> None:
    os.makedirs(os.path.dirname(f"/new{path}"), exist_ok=True)
