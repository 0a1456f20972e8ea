"""Run a program that nobody vouches for: limits on time, memory, files and processes, and an enclosure."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NoReturn

from slime_stages.errors import UsageError
from slime_stages.isolation import namespaces, process_tree
from slime_stages.isolation.enclosure import Enclosure, python_binds

Isolation = Literal["namespaces", "limits"]

SCRATCH = "/tmp"
"""The folder that a program in namespaces may write to."""
_OUTPUT_BYTES = 16 << 20
_OPEN_FILES = 256
_PROCESSES = 64
_NICE = 5
"""Whoever watches a program comes before all that it starts."""
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.02
_KILLED = 128 + signal.SIGKILL
_NOT_SHUT_IN = 125
_READ_SOURCE = "exec(compile(open(3, encoding='utf-8').read(), 'program.py', 'exec'))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use."""

    seconds: float
    """Wall clock."""
    memory_bytes: int
    """Address space of each of its processes."""
    isolation: Isolation
    """`namespaces`: no network, no file but the system's and Python's, none to write but in its scratch folder.
    `limits`: only what this record says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    code: int | None
    """Its exit code, 128 and more for a signal; None: out of time."""
    stdout: bytes
    """The first 16 MiB of what it wrote."""
    stderr: bytes
    """The end of it."""


def run_python(source: str, stdin: bytes, limits: Limits) -> Ended:
    """Run Python source in a process of its own, and kill whatever it leaves behind."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(5)]
        _fill(files[0], stdin)
        _fill(files[3], source.encode(errors="replace"))
        _python_alone()  # a fork would forget it
        pid = os.fork()
        if pid == 0:
            _become([sys.executable, "-I", "-B", "-c", _READ_SOURCE], [file.fileno() for file in files], limits)
        try:
            code = _wait(pid, limits.seconds)
        finally:
            process_tree.kill_tree(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if reason := _content(files[4], 1000):
            raise UsageError(
                f"this machine does not let a program be shut in: {reason.decode()}",
                hint="--code-sandbox limits runs programs with your rights and your network",
            )
        return Ended(code=code, stdout=_content(files[1], _OUTPUT_BYTES), stderr=_content(files[2], 2000, at_end=True))


def _become(command: Sequence[str], descriptors: Sequence[int], limits: Limits) -> NoReturn:
    """In a forked child: take the way in, start the program as its own child, and end as that one ends."""
    # Out of the way of the numbers that the program finds its files at.
    files = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in descriptors]
    try:
        os.setsid()
        process_tree.die_with_parent()
        os.nice(_NICE)
        if limits.isolation == "namespaces":
            namespaces.leave_machine()
        pid = os.fork()
        if pid == 0:
            _start(command, files, limits)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    except BaseException as error:
        os.write(files[4], f"{type(error).__name__}: {error}".encode())
        os._exit(_NOT_SHUT_IN)


def _start(command: Sequence[str], descriptors: Sequence[int], limits: Limits) -> NoReturn:
    try:
        process_tree.die_with_parent()
        folder = tempfile.gettempdir()
        if limits.isolation == "namespaces":
            namespaces.shut_in(_python_alone())
            folder = SCRATCH
        os.chdir(folder)
        for number, descriptor in enumerate(descriptors[:4]):
            os.dup2(descriptor, number)
        _limit(limits)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # This closes all other files: Python opens none that a new program inherits.
        os.execve(command[0], list(command), _environment(folder))
    except BaseException as error:
        os.write(descriptors[4], f"{type(error).__name__}: {error}".encode())
        os._exit(_NOT_SHUT_IN)


@functools.cache
def _python_alone() -> Enclosure:
    return Enclosure(binds=python_binds(), scratch=(SCRATCH,))


def _limit(limits: Limits) -> None:
    chosen: dict[int, int] = {
        resource.RLIMIT_CPU: math.ceil(limits.seconds) + 1,
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: _OUTPUT_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if limits.isolation == "namespaces":  # elsewhere it would count all that the user runs on the machine
        chosen[resource.RLIMIT_NPROC] = _PROCESSES
    for kind, most in chosen.items():
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))


def _environment(folder: str) -> dict[str, str]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    fixed = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    return {"HOME": folder, "TMPDIR": folder, **fixed, **one_thread}


def _wait(pid: int, seconds: float) -> int | None:
    """The exit code of a child; None if it does not end in time. The child stays to be buried.

    It also ends where there are too many processes: the kernel's limit does not hold for root.
    """
    deadline, pause = time.monotonic() + seconds, _SHORTEST_POLL
    while True:
        ended: Any = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return int(ended.si_status) if ended.si_code == os.CLD_EXITED else 128 + int(ended.si_status)
        if time.monotonic() >= deadline:
            return None
        if pause >= _LONGEST_POLL and len(process_tree.descendants(pid)) > _PROCESSES:
            return _KILLED
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL)


def _fill(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    file.seek(0)


def _content(file: BinaryIO, most: int, *, at_end: bool = False) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most) if at_end else 0)
    return file.read(most)
