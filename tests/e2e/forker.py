"""Stage calls in children of one preloaded process, each watched, and killed at a given point if asked to.

What changes files in the run folder, and every unit of work that is reported done, is an event. An undisturbed child
tells its events; another one is killed at the n-th, or stopped there until those that start after it have ended. The
process adopts orphans, so that none goes unseen.

Run as `python -m tests.e2e.forker ANSWERS PARENT`; tests talk to it through `Forker` of `stage_calls.py`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slime_stages.launch import preload

FILE_FUNCTIONS = ("rename", "replace", "link", "symlink", "fsync", "unlink", "remove", "mkdir", "rmdir")
SET_CHILD_SUBREAPER = 36
END_SECONDS = 15.0
"""How long processes of a killed stage may take to notice and end."""


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    preload.die_with_parent(int(sys.argv[2]))
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for module in preload.MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        answers.write(json.dumps(run_together(json.loads(line))).encode() + b"\n")


def run_together(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fork a child for each job, all at once; how each ended, with its events and who outlived it."""
    with tempfile.TemporaryDirectory() as folder:
        records = [Path(folder) / str(number) for number in range(len(jobs))]
        started = [start(job, record) for job, record in zip(jobs, records, strict=True)]
        outcomes = {}
        for number in sorted(range(len(jobs)), key=lambda number: (is_stopped(jobs[number]), -number)):
            child, reader = started[number]
            os.kill(child, signal.SIGCONT)
            outcomes[number] = finish(child, reader, records[number])
        survivors = await_orphans()
    return [{**outcomes[number], "survivors": survivors} for number in range(len(jobs))]


def is_stopped(job: dict[str, Any]) -> bool:
    return bool(job["kill"]) and job["kill"]["mode"] == "stopped"


def start(job: dict[str, Any], record: Path) -> tuple[int, int]:
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            work(job, record, writer, parent)
        finally:
            os._exit(99)
    os.close(writer)
    if is_stopped(job):
        os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return child, reader


def finish(child: int, reader: int, record: Path) -> dict[str, Any]:
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    events = record.read_text().splitlines() if record.exists() else []
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "answer": json.loads(answer) if answer else None,
        "events": [line.split("\t") for line in events],
    }


def await_orphans() -> list[str]:
    """Collect what children left behind; the commands of those that are still there after `END_SECONDS`."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            child, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if child == 0 and time.monotonic() > deadline:
            return kill_children()
        time.sleep(0 if child else 0.02)


def kill_children() -> list[str]:
    tasks = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in tasks]
    for pid in tasks:
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
    return commands


def work(job: dict[str, Any], record: Path, writer: int, parent: int) -> None:
    """What the child does: the call, as a forked stage of the local loop does it."""
    from slime_stages.launch.run_stage import result_of
    from slime_stages.stage import StageCall, finish_deferred

    preload.die_with_parent(parent)
    os.environ.update(job["environment"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    call = StageCall.from_json(job["call"])
    Watch(call.run, record, job["kill"]).begin()
    result = result_of(call)
    os.write(writer, result.to_json())
    os.close(writer)
    finish_deferred()
    os._exit(0)


class Watch:
    """Notes the events of this process and of its forks; kills the one that comes to the point of `kill`."""

    def __init__(self, run: Path, record: Path, kill: dict[str, Any] | None) -> None:
        self._run, self._kill = str(run), kill
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._stage = os.getpid()
        self._counts: dict[tuple[int, bool], int] = {}
        """By process; work that is done is counted apart, since it may be told after the next file was written."""

    def begin(self) -> None:
        from slime_stages.progress import Progress

        for name in FILE_FUNCTIONS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        advance = Progress.advance

        def watched_advance(progress: Progress, *arguments: Any, **figures: Any) -> None:
            advance(progress, *arguments, **figures)
            self._note("done", f"{progress._title} {progress._done}", None)

        Progress.advance = watched_advance  # type: ignore[method-assign]

    def _watched(self, name: str, function: Any) -> Any:
        def watched(path: Any, *arguments: Any, **named: Any) -> Any:
            place = resolved(path, named.get("dir_fd"))
            is_inside = place.startswith(self._run + "/")
            if is_inside:
                kind = f"{name} folder" if name == "fsync" and os.path.isdir(place) else name
                self._note(kind, place.removeprefix(self._run + "/"), path)
            try:
                return function(path, *arguments, **named)
            finally:
                if is_inside and self._is_here("after"):
                    os.kill(os.getpid(), signal.SIGKILL)

        return watched

    def _note(self, name: str, what: str, path: Any) -> None:
        process, is_done = os.getpid(), name == "done"
        number = self._counts[process, is_done] = self._counts.get((process, is_done), 0) + 1
        os.write(self._record, f"{self._role()}\t{number}\t{name}\t{what}\n".encode())
        if self._is_here("torn", is_done=is_done):
            assert name == "fsync"
            os.truncate(resolved(path, None), os.path.getsize(resolved(path, None)) // 2)
        if self._is_here("torn", is_done=is_done) or self._is_here("before", is_done=is_done):
            os.kill(process, signal.SIGKILL)
        if self._is_here("stopped", is_done=is_done):
            os.kill(process, signal.SIGSTOP)

    def _role(self) -> str:
        return "stage" if os.getpid() == self._stage else "fork"

    def _is_here(self, mode: str, *, is_done: bool = False) -> bool:
        number = self._counts.get((os.getpid(), is_done), 0)
        return self._kill == {"role": self._role(), "number": number, "mode": mode, "is_done": is_done}


def resolved(path: Any, folder: int | None) -> str:
    """The absolute path that a call on the file system means."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}") if stat.S_IFMT(os.fstat(path).st_mode) != stat.S_IFIFO else ""
    text = os.fsdecode(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else os.getcwd(), text)


if __name__ == "__main__":
    main()
