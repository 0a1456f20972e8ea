"""Calls of stages from tests, through the forker: how each ended, what it did, and kill points chosen from that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from slime_stages.launch.run_stage import StageResult
from slime_stages.stage import BACKGROUND_VARIABLE, StageCall

ROOT = Path(__file__).parent.parent.parent
OWN_NAMES = re.compile(r"\.tmp-.+?-(?=[a-z])|[^/]+-[0-9a-f]{16}-|-\d{19}(?=$|/)")
"""Parts of temporary names that differ from process to process."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the run folder, or a unit of work done, in a stage's process or in a fork of it."""

    role: str
    """stage or fork."""
    number: int
    """Counts from 1 in each process."""
    name: str
    """The function of `os` (`fsync folder` for that of a folder), or `done`."""
    what: str
    """Path below the run folder, or what is done."""

    def __str__(self) -> str:
        return f"{self.role} {self.number}: {self.name} {self.what}"


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Where to kill: before the call takes effect, after it, or with half of what was written on the disk.

    Or where to stop, before the call takes effect, until all attempts that began later have ended.
    """

    event: Event
    mode: str
    """before, after, torn or stopped."""

    def __str__(self) -> str:
        return f"{self.mode} {self.event}"

    def to_dict(self) -> dict[str, Any]:
        is_done = self.event.name == "done"
        return {"role": self.event.role, "number": self.event.number, "mode": self.mode, "is_done": is_done}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended."""

    signal: int | None
    result: StageResult | None
    """None if it was killed before it had one."""
    events: list[Event]
    survivors: list[str]
    """Commands of processes that did not end with it."""

    @property
    def is_killed(self) -> bool:
        return self.signal == signal.SIGKILL


class Forker:
    """A preloaded process that forks a child for every call. Use as a context manager."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def run(self, call: StageCall, kill: KillPoint | None = None, *, background: bool = True) -> Outcome:
        """`background`: the stage may end while a fork of it is still writing, as in the local loop."""
        return self.run_together([call], [kill], background=background)[0]

    def run_together(
        self, calls: list[StageCall], kills: Sequence[KillPoint | None] = (), *, background: bool = True
    ) -> list[Outcome]:
        """Run calls at the same time, each in a child of its own. `kills` are for the first of them."""
        environment = {BACKGROUND_VARIABLE: "1"} if background else {}
        common = {"environment": environment, "log": str(self.log)}
        jobs = [
            {**common, "call": call.to_json(), "kill": kill and kill.to_dict()}
            for call, kill in zip_longest(calls, kills)
        ]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(jobs).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        assert answer, f"the forker ended with {self._process.wait()}; see {self.log}"
        return [outcome_of(values) for values in json.loads(answer)]

    def __enter__(self) -> Self:
        answers, theirs = os.pipe()
        environment = {"TOKENIZERS_PARALLELISM": "false", **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.forker", str(theirs), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, pass_fds=[theirs], env=environment, cwd=self.log.parent
        )
        os.close(theirs)
        self._answers = os.fdopen(answers, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._answers.close()


def outcome_of(values: dict[str, Any]) -> Outcome:
    return Outcome(
        signal=values["signal"],
        result=StageResult(**values["answer"]) if values["answer"] else None,
        events=[
            Event(role, int(number), name, OWN_NAMES.sub("*", what)) for role, number, name, what in values["events"]
        ],
        survivors=values["survivors"],
    )


def kill_points(events: list[Event]) -> list[KillPoint]:
    """Before every event, and with a torn file at every fsync of one; and after the last event of each process."""
    points = []
    for event in events:
        points.append(KillPoint(event, "before"))
        if event.name == "fsync":
            points.append(KillPoint(event, "torn"))
    last = {event.role: event for event in events if event.name != "done"}
    return points + [KillPoint(event, "after") for event in last.values()]


def spread(points: list[KillPoint], count: int) -> list[KillPoint]:
    """At most `count` of them, evenly over the whole."""
    if len(points) <= count:
        return points
    return [points[round(index * (len(points) - 1) / (count - 1))] for index in range(count)]
