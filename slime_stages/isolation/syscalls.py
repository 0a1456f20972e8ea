"""The calls of the Linux kernel that Python has no name for; each raises OSError with the call's name."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_USER = 0x20000, 0x4000000, 0x8000000, 0x10000000
NEW_PROCESSES, NEW_NETWORK = 0x20000000, 0x40000000
"""Kinds of namespaces that `unshare` leaves."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18

_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITIES_VERSION = 0x20080522
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_MNT_DETACH = 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def unshare(kinds: int) -> None:
    """Leave namespaces of the machine; a new table of processes holds only those that are started from now on."""
    _call("unshare", kinds)


def enter(descriptor: int, kind: int) -> None:
    """Join the namespace that a file of /proc/PID/ns stands for; one of users takes a process with one thread."""
    _call("setns", descriptor, kind)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None if options is None else options.encode(), about=target)


def set_mount_flags(path: str, flags: int, *, recursive: bool = True) -> None:
    """Add MS_RDONLY, MS_NOSUID or MS_NODEV to a mount and those below it; ENOSYS before Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    depth = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    number = ctypes.c_long(_SYS_MOUNT_SETATTR)
    _call("syscall", number, _AT_FDCWD, path.encode(), depth, ctypes.byref(attributes), size, about="mount_setattr")


def make_root(folder: str) -> None:
    """Make a mount the root of this namespace, and let go of all that was mounted before."""
    os.chdir(folder)
    _call("syscall", ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine]), b".", b".", about="pivot_root")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def move_root(folder: str, old: str) -> None:
    """Make a mount the root of this namespace; all that was mounted before is then below `old`, within it."""
    number = ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine])
    _call("syscall", number, folder.encode(), old.encode(), about="pivot_root")
    os.chdir("/")


def leave_keyring() -> None:
    """Hold none of the keys of the kernel's that a login brings along, such as Kerberos tickets."""
    number = ctypes.c_long(_SYS_KEYCTL[os.uname().machine])
    if ctypes.CDLL(None, use_errno=True).syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        error = ctypes.get_errno()
        if error != errno.ENOSYS:  # a kernel without any
            raise OSError(error, f"keyctl: {os.strerror(error)}")


def raise_loopback() -> None:
    """Let programs of a new network namespace reach themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def give_up_rights() -> None:
    """Hold no capability, gain none by any program ever after, and be no open book to others of the same user."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    _call("syscall", ctypes.c_long(_SYS_CAPSET[os.uname().machine]), header, none, about="capset")
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def _call(name: str, *arguments: object, about: str = "") -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {about}".strip() + f": {os.strerror(number)}")
