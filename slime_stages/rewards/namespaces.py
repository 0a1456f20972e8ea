"""Shut a program in: no network, no other process in sight, no file to write but in a folder that goes with it (Linux).

User namespaces need no rights. `enter` moves the calling process, and all that it starts from then on, out of the
machine's network and process table and into a read-only view of its files; `settle` ends the way in for the first
process started after that.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_PR_SET_NO_NEW_PRIVS = 38
_NOBODY = 65534
_COVERED = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders with other people's files and sockets: emptied, and the first of them is the scratch folder."""
_SCRATCH = "size=64m,nr_inodes=4096,mode=0777"


def scratch_folder() -> str:
    """The folder that a program may write to."""
    return _covered()[0]


def enter() -> None:
    """Leave the machine's namespaces; OSError where the machine does not allow it."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_MOUNTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK)
    Path("/proc/self/setgroups").write_text("deny")
    # Any number but 0 loses all capabilities when the program starts, so that it cannot undo what follows.
    Path("/proc/self/uid_map").write_text(f"{_NOBODY} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_NOBODY} {group} 1")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _make_read_only()
    for folder in _covered():
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, _SCRATCH)


def settle() -> None:
    """In the first process of the new table: see only one's own processes, and gain no rights ever after."""
    try:
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:  # within some containers; without any /proc the others are out of sight, too
        _mount("tmpfs", "/proc", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=4k,mode=0555")
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _covered() -> list[str]:
    interpreter = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, sys.executable)}
    folders = [folder for folder in _COVERED if os.path.isdir(folder) and not os.path.islink(folder)]
    return [folder for folder in folders if not any(f"{path}/".startswith(f"{folder}/") for path in interpreter)]


def _make_read_only() -> None:
    """All mounts at once; before Linux 5.12 there is no such call, and ENOSYS says so."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flags = ctypes.c_uint(_AT_RECURSIVE)
    _call("syscall", ctypes.c_long(_SYS_MOUNT_SETATTR), _AT_FDCWD, b"/", flags, ctypes.byref(attributes), size)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None if options is None else options.encode())


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
