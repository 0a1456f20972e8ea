"""SLURM's commands as scripts on PATH that answer from files: who asks through real processes sees what a test says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from slime_stages.slurm.listing import SQUEUE_COLUMNS, JobInfo

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
SCRIPTS = {
    "squeue": f'test -e down && {{ echo "{AWAY}" >&2; exit 1; }}; cat jobs',
    "sacct": 'echo "Slurm accounting storage is disabled" >&2; exit 1',
    "scancel": ": > jobs",
}


@dataclass(frozen=True, slots=True)
class FakeCommands:
    """`squeue` lists what `say` was told last; `scancel` empties the queue."""

    folder: Path

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
        self.folder.mkdir()
        for name, text in SCRIPTS.items():
            script = self.folder / name
            script.write_text(f'#!/bin/sh\ncd "{self.folder}"\necho "{name} $*" >> calls\n{text}\n')
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")
        self.say()
        return self

    def say(self, *jobs: JobInfo) -> None:
        """What is in the queue, or was a short while ago."""
        (self.folder / "jobs").write_text("".join(_line(job) for job in jobs))

    def answer(self, name: str, text: str) -> None:
        """Have another command say this, whatever it is asked."""
        script = self.folder / name
        script.write_text(f"#!/bin/sh\necho '{text}'\n")
        script.chmod(0o755)

    def go_down(self) -> None:
        (self.folder / "down").touch()

    def calls(self, name: str) -> list[str]:
        """The command lines of `name` so far."""
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.split()[0] == name] if path.exists() else []


def _line(job: JobInfo) -> str:
    values = {
        "JobArrayID": job.job_id,
        "State": job.state,
        "exit_code": str(job.exit_code << 8 | job.signal),
        "RestartCnt": str(job.restarts),
        "SubmitTime": _seconds(job.submitted),
        "StartTime": _seconds(job.started),
        "EndTime": _seconds(job.ended),
        "NodeList": job.nodes,
        "Reason": job.reason or "None",
    }
    return "".join(values[column].ljust(width) for column, width in SQUEUE_COLUMNS.items()) + "\n"


def _seconds(time: float | None) -> str:
    return "N/A" if time is None else f"{time:.0f}"
