"""The process outside of an enclosure that starts it, watches its limits and ends it with its owner.

`start` runs it as a program of its own: its owner may have threads, and hold in memory what nobody within may see.
However the owner dies, the guard sees another parent and kills the first process within; the kernel then kills the
others, and mounts and scratch folders, which nobody else sees, are gone with the last of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from slime_stages.isolation import bubblewrap, keeper, namespaces, process_tree, programs
from slime_stages.isolation.enclosure import Enclosure
from slime_stages.isolation.limits import hold_to_limits
from slime_stages.isolation.syscalls import leave_keyring

Way = Literal["namespaces", "bubblewrap"]
WAYS: tuple[Way, ...] = get_args(Way)

_WATCH_SECONDS = 0.1
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def start(enclosure: Enclosure, way: Way, control: socket.socket, messages: int) -> subprocess.Popen[bytes]:
    """Start a guard; the keeper answers at the other end of `control`, and `messages` is a file for what goes wrong."""
    given = {"enclosure": enclosure.to_json(), "way": way, "control": control.fileno(), "owner": os.getpid()}
    process = subprocess.Popen(
        programs.COMMAND,
        stdin=subprocess.PIPE,
        stdout=messages,
        stderr=messages,
        pass_fds=[control.fileno()],
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(programs.request(__name__, **given))
    return process


def main(given: dict[str, Any]) -> None:
    """Start the keeper, and stay until it or the owner ends."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    enclosure, way = Enclosure.from_json(given["enclosure"]), given["way"]
    control = socket.socket(fileno=given["control"])
    try:
        if way == "namespaces":
            namespaces.leave_machine()
        pid = os.fork()
        if pid == 0:
            process_tree.die_with_parent()
            _become_first(enclosure, way, control)
    except OSError as error:
        sys.exit(error.strerror)
    control.close()
    core = bubblewrap.CORE_PROCESSES if way == "bubblewrap" else 1
    _watch(pid, given["owner"], core, enclosure)


def _become_first(enclosure: Enclosure, way: str, control: socket.socket) -> NoReturn:
    try:
        if way == "bubblewrap":
            leave_keyring()
            words = bubblewrap.arguments(enclosure, control.fileno())
            os.execvp(words[0], words)
        namespaces.shut_in(enclosure)
        keeper.serve(control, enclosure.process_count, enclosure.open_files)
    except OSError as error:
        _say(error.strerror or str(error))
    finally:
        os._exit(1)


def _watch(pid: int, owner: int, core: int, enclosure: Enclosure) -> None:
    deadline = None if enclosure.seconds is None else time.monotonic() + enclosure.seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        is_late = deadline is not None and time.monotonic() > deadline
        if is_late:
            _say(f"its time of {enclosure.seconds:g} s is up")
        if is_late or os.getppid() != owner or not _holds_to_limits(pid, core, enclosure):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(_WATCH_SECONDS)


def _holds_to_limits(pid: int, core: int, enclosure: Enclosure) -> bool:
    return hold_to_limits(
        lambda: process_tree.descendants(pid)[core - 1 :],
        process_count=enclosure.process_count,
        memory_bytes=enclosure.memory_bytes,
        say=_say,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def restrictions() -> str:
    """What of this machine's settings forbids user namespaces, and what to ask for."""
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "ask for the setting kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0":
        return "ask for the setting user.max_user_namespaces=10000"
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "ask for bubblewrap with its AppArmor profile, or for kernel.apparmor_restrict_unprivileged_userns=0"
    return "ask for bubblewrap, or use Apptainer"


def _setting(name: str) -> str | None:
    path = Path("/proc/sys", name)
    return path.read_text().strip() if path.exists() else None
