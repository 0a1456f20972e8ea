"""The first process of an enclosure: it starts programs within, for the one who holds the other end of its socket.

A file of its own with the standard library only, so that it also runs where nothing else of ours is in sight:
`python -I -S keeper.py DESCRIPTOR PROCESSES FILES`. When the other end is closed it ends, and with it, since it is
the first of a process table, every process within.

A request is `run`, with five descriptors: a file with the JSON of a command, its stdin, stdout and stderr, and a
socket. The exit code is written to that socket; closing its other end kills the command with all that it started.
Or it is `listen`, and the answer carries a socket that listens on a port of this network.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A batch system sends these to every process of a job; what follows is the owner's to decide."""
_NOT_STARTED = 127
_BACKLOG = 64


def serve(control: socket.socket, process_count: int, open_files: int) -> NoReturn:
    """Carry out requests until the other end is closed."""
    _prctl(_PR_SET_DUMPABLE, 0)
    control.set_inheritable(False)
    for number in (*_HANDLED, signal.SIGCHLD):  # ignored children need not be buried
        signal.signal(number, signal.SIG_IGN)
    limits = {resource.RLIMIT_NOFILE: open_files, resource.RLIMIT_CORE: 0}
    if _counts_within():
        limits[resource.RLIMIT_NPROC] = process_count
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
    control.send(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 5, socket.MSG_CMSG_CLOEXEC)
        if not request:
            os._exit(0)
        if request == b"listen":
            _listen(control)
        elif len(descriptors) == 5:
            _run(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _counts_within() -> bool:
    """Whether the kernel's limit on processes leaves out what the user runs elsewhere on the machine."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (5, 14)


def _listen(control: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as server:
        socket.send_fds(control, [b"listening"], [server.fileno()])


def _run(descriptors: Sequence[int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        os.write(descriptors[3], f"no process can be started: {error.strerror}\n".encode())
        os.write(descriptors[4], str(_NOT_STARTED).encode())
        return
    if pid == 0:
        try:
            _watch(descriptors)
        finally:
            os._exit(0)


def _watch(descriptors: Sequence[int]) -> None:
    """In a process of its own: have the command run, tell of its end, or kill it with what it left to itself."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid, report = os.fork(), descriptors[4]
    if pid == 0:
        _start(descriptors)
    for descriptor in descriptors[:4]:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(report, select.POLLIN)
    if ended in [descriptor for descriptor, _ in poll.poll()]:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(report, str(code if code >= 0 else 128 - code).encode())
        return
    _kill(pid)


def _kill(pid: int) -> None:
    """Rounds, until there is nothing: whatever loses its parent becomes a child of this process."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    own = os.getpid()
    while True:
        with suppress(OSError), open(f"/proc/{own}/task/{own}/children") as file:
            for child in file.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _start(descriptors: Sequence[int]) -> NoReturn:
    try:
        with open(descriptors[0], encoding="utf-8", closefd=False) as file:
            command = json.load(file)
        os.setsid()
        for number, descriptor in enumerate(descriptors[1:4]):
            os.dup2(descriptor, number)
        for signal_number in (*_HANDLED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(command["folder"])
        os.execvpe(command["arguments"][0], command["arguments"], command["environment"])
    except OSError as error:
        os.write(2, f"{error.filename or 'the command'}: {error.strerror}\n".encode())
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(_NOT_STARTED)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
