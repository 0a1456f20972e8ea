"""A small parent for an engine: when its owner goes, by whatever signal, every process of the engine goes too.

Run by file path with the standard library only: `python -I -S guard.py COMMAND…`. Its standard input is a pipe whose
other end the owner holds; end of file is the order to stop. It adopts orphans, so that nothing can leave the tree.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36
"""prctl(2) options: SIGKILL for me when my parent dies; orphans below me become my children."""

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A batch system signals every process of a job; when the engine ends is the owner's decision. The server inherits it:
where SGLang puts a handler of its own, on SIGTERM, that one goes on until no request is left."""

POLL_SECONDS = 0.5
CLEANER = b"multiprocessing.resource_tracker"
"""Processes with this in their command unlink named semaphores when the others are gone: they are killed last."""


def main(command: list[str]) -> int:
    """Run `command` until it ends or the owner goes; leave no process, no temporary file and no shared memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # the owner blocks them until this

    def prepare_child() -> None:
        libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

    scratch = tempfile.mkdtemp(prefix="slime-stages-")
    environment = os.environ | {"TMPDIR": scratch}
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=prepare_child)
        code = watch(server.pid, owner=os.getppid())
    finally:
        kill_descendants()
        shutil.rmtree(scratch, ignore_errors=True)
    return code


def watch(server: int, owner: int) -> int:
    """The server's exit code, or 0 once the owner closes the pipe or is gone."""
    while True:
        code = reap(server)
        if code is not None:
            return code if code >= 0 else 128 - code
        readable, _, _ = select.select([0], [], [], POLL_SECONDS)
        if (readable and not os.read(0, 1)) or os.getppid() != owner:
            return 0


def reap(server: int) -> int | None:
    """Collect every ended child; the server's exit code if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == server:
            code = os.waitstatus_to_exitcode(status)


def kill_descendants() -> None:
    """SIGKILL everything below this process, in rounds, until nothing is left."""
    shared_memory: set[str] = set()
    cleaners_until = time.monotonic() + 1.0
    while pids := descendants(os.getpid()):
        for pid in pids:
            shared_memory |= mapped_shared_memory(pid)
        for pid in pids:
            if time.monotonic() < cleaners_until and CLEANER in command_line(pid):
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
        reap(-1)
    for path in shared_memory:
        Path(path).unlink(missing_ok=True)


def descendants(root: int) -> list[int]:
    """Every process below `root`, zombies included, as /proc tells."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            after_name = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2]
        except OSError:
            continue
        children.setdefault(int(after_name.split()[1]), []).append(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def mapped_shared_memory(pid: int) -> set[str]:
    """SGLang's files in /dev/shm that `pid` has mapped: a killed process cannot unlink them."""
    try:
        lines = Path("/proc", str(pid), "maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.partition("/")[1] + line.partition("/")[2] for line in lines if "/dev/shm/sglang_" in line}
    return {path for path in paths if not path.endswith("(deleted)")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
