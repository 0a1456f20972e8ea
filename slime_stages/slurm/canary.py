"""A small job that looks at a compute node: does it see this folder, has it Python, may it submit?

FOLDER/.doctor-PID-TIME/from-here.txt   written here, read by the job
                        from-node.txt   the same, written by the job, with its node's name
                        facts.json      what Python found there
                        job.log         what the job printed
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_stages.run.commit import replace_file
from slime_stages.slurm.commands import Answer, call_scheduler
from slime_stages.slurm.environment import offline_lines, submission_environment
from slime_stages.slurm.header import Header
from slime_stages.slurm.machine import Facts
from slime_stages.slurm.probe import FACTS
from slime_stages.slurm.queue import JobInfo, query

PLACEMENT = ("account", "constraint", "exclude", "licenses", "nodelist", "partition", "qos", "reservation")
"""Options that decide which node a job gets."""
SMALL = {"nodes": "1", "ntasks": "1", "cpus-per-task": "1", "mem": "2G"}
TIME_MINUTES = "10"

VISIBLE_SECONDS = 60.0
"""How long a network file system may hide a file from other machines."""
POLL_SECONDS = 0.5
LOG_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One job for all stages that run in the same place with the same set-up."""

    headers: tuple[Header, ...]
    folder: Path
    submitted: float
    """Unix time."""
    job_id: str = ""
    refusal: str | None = None
    """sbatch's words, if it did not take the job."""

    @property
    def stages(self) -> str:
        return ", ".join(header.stage for header in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What came of the job."""

    job: JobInfo | None
    """None: SLURM does not know it any more."""
    node: str | None = None
    """Its name, from the file that it wrote; None if that file is not seen."""
    saw_our_file: bool = False
    hidden_seconds: float = 0.0
    """How long the node's file was not seen here after the job had ended."""
    facts: Facts | None = None
    log: str = ""


def group_headers(headers: Sequence[Header]) -> list[tuple[Header, ...]]:
    """Headers that one job can speak for."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        groups.setdefault(repr((placement(header), header.setup, header.python)), []).append(header)
    return [tuple(group) for group in groups.values()]


def placement(header: Header) -> dict[str, str | bool]:
    return {option: header.directives[option] for option in PLACEMENT if option in header.directives}


def submit_canary(headers: tuple[Header, ...], where: Path) -> Canary:
    """Submit the job: a small one, or as large as the stage's where no small one is taken."""
    folder = where.absolute() / f".doctor-{os.getpid()}-{time.monotonic_ns():x}"
    folder.mkdir()
    replace_file(folder / "from-here.txt", f"{folder.name}\n".encode())
    submitted = time.time()
    answer = _sbatch(headers, folder, {**SMALL, **placement(headers[0])})
    if answer.exit_code:
        answer = _sbatch(headers, folder, headers[0].directives)
    if answer.exit_code:
        return Canary(headers=headers, folder=folder, submitted=submitted, refusal=answer.complaint)
    job_id = answer.stdout.strip().partition(";")[0]
    return Canary(headers=headers, folder=folder, submitted=submitted, job_id=job_id)


def watch_canary(canary: Canary, *, wait_seconds: float) -> Sighting:
    """Wait for the job's end, and for its files to be seen here. It is cancelled if it has not ended in time."""
    deadline = time.monotonic() + wait_seconds
    job = _job(canary)
    while job is not None and job.is_live and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        job = _job(canary)
    if job is not None and job.is_live:
        call_scheduler(["scancel", canary.job_id])
        return Sighting(job=job)
    ended = time.monotonic()
    wanted = FACTS if job is not None and job.state == "COMPLETED" else "from-node.txt"
    while not _read(canary.folder, wanted) and time.monotonic() < ended + VISIBLE_SECONDS:
        time.sleep(POLL_SECONDS)
    hidden = time.monotonic() - ended
    told, _, node = _read(canary.folder, "from-node.txt").partition(" ")
    facts = _read(canary.folder, FACTS)
    return Sighting(
        job=job,
        node=node.strip() or None,
        saw_our_file=told == canary.folder.name,
        hidden_seconds=hidden if hidden > POLL_SECONDS else 0.0,
        facts=Facts(**orjson.loads(facts)) if facts else None,
        log=_last_lines(_read(canary.folder, "job.log")),
    )


def remove_canary(canary: Canary) -> None:
    shutil.rmtree(canary.folder, ignore_errors=True)


def _job(canary: Canary) -> JobInfo | None:
    return query(canary.folder.name, [canary.job_id], since=canary.submitted).get(canary.job_id)


def _sbatch(headers: tuple[Header, ...], folder: Path, options: Mapping[str, str | bool]) -> Answer:
    script = folder / "job.sbatch"
    script.write_text(_script(headers, folder, options))
    return call_scheduler(["sbatch", "--parsable", str(script)], environment=submission_environment(options))


def _script(headers: tuple[Header, ...], folder: Path, options: Mapping[str, str | bool]) -> str:
    first, quoted = headers[0], shlex.quote(str(folder))
    own = {"job-name": folder.name, "output": str(folder / "job.log"), "time": TIME_MINUTES}
    wanted = [*(header.stage for header in headers), *_words(placement(first))]
    return "\n".join(
        [
            first.shell,
            *(f"#SBATCH {word}" for word in _words({**options, **own})),
            # without Python, which may be what is missing
            f"for second in {{1..{VISIBLE_SECONDS:.0f}}}; do",
            f"  [ -s {quoted}/from-here.txt ] && break; ls -a {quoted} > /dev/null; sleep 1",
            "done",
            f'echo "$(cat {quoted}/from-here.txt) ${{SLURMD_NODENAME:-$(hostname)}}" > {quoted}/from-node.txt',
            "set -e",
            "trap 'echo \"this failed: $BASH_COMMAND\" >&2' ERR",
            *offline_lines(),
            *first.setup,
            "trap - ERR",
            f"exec {first.python} -m slime_stages.slurm.probe {quoted} {shlex.join(wanted)}",
            "",
        ]
    )


def _last_lines(text: str) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-LOG_LINES:])


def _words(options: Mapping[str, str | bool]) -> list[str]:
    return [f"--{option}" if value is True else f"--{option}={value}" for option, value in options.items()]


def _read(folder: Path, name: str) -> str:
    """Empty if it is not seen; listing the folder makes a network file system look again."""
    try:
        return (folder / name).read_text(errors="replace") if name in os.listdir(folder) else ""
    except FileNotFoundError:
        return ""
