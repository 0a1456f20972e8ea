"""The lists that `squeue` and `sacct` print, read into records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from slime_stages.slurm.nodes import expand_nodes

ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States that a run of a job does not leave; a requeued job's next run has its own."""

NODE_AT_FAULT = frozenset(("NODE_FAIL", "BOOT_FAIL"))

SQUEUE_COLUMNS = {
    "JobArrayID": 40,
    "State": 24,
    "exit_code": 12,
    "RestartCnt": 10,
    "SubmitTime": 14,
    "StartTime": 14,
    "EndTime": 14,
    "NodeList": 512,
    "Reason": 80,
}
"""Fields and their widths: each is padded or cut to it, so that no character need separate them."""

SACCT_COLUMNS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "Reason")
SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job, or one task of an array, as SLURM describes its latest run. Times are Unix times."""

    job_id: str
    """`123`, or `123_4` of an array."""
    state: str
    """SLURM's word: RUNNING, CANCELLED, OUT_OF_MEMORY …"""
    reason: str = ""
    """Why it is pending or has ended, in SLURM's word; empty if SLURM gives none."""
    exit_code: int = 0
    signal: int = 0
    nodes: str = ""
    """As SLURM writes them: `node[1-2]`."""
    submitted: float | None = None
    started: float | None = None
    """None before the run has begun."""
    ended: float | None = None
    restarts: int = 0
    """How often SLURM has put the job back into the queue."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes that failed under earlier runs of this job; known with accounting only."""

    @property
    def is_live(self) -> bool:
        """Whether it runs, or will run without anybody's doing."""
        return self.state not in ENDED


def parse_squeue(text: str) -> dict[str, JobInfo]:
    jobs = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        values, position = {}, 0
        for column, width in SQUEUE_COLUMNS.items():
            values[column] = line[position : position + width].strip()
            position += width
        for job_id in expand_tasks(values["JobArrayID"]):
            jobs[job_id] = _job_of_squeue(job_id, values)
    return jobs


def _job_of_squeue(job_id: str, values: Mapping[str, str]) -> JobInfo:
    """Start and end of jobs that have not started or ended are forecasts there, and left out here."""
    state = _state(values["State"])
    started = None if state in ("PENDING", "CONFIGURING") else _time(values["StartTime"])
    exit_code, signal = _exit_status(values["exit_code"])
    return JobInfo(
        job_id=job_id,
        state=state,
        reason=_word(values["Reason"]),
        exit_code=exit_code,
        signal=signal,
        nodes=_word(values["NodeList"]),
        submitted=_time(values["SubmitTime"]),
        started=started,
        ended=_time(values["EndTime"]) if state in ENDED else None,
        restarts=int(values["RestartCnt"] or 0),
    )


def parse_sacct(text: str) -> dict[str, JobInfo]:
    """The latest run of each job, with what earlier runs and its steps add to it."""
    runs: dict[str, list[JobInfo]] = {}
    for line in text.splitlines():
        values = dict(zip(SACCT_COLUMNS, line.split(SEPARATOR), strict=False))
        if len(values) < len(SACCT_COLUMNS):
            continue
        whole, _, step = values["JobID"].partition(".")
        for job_id in expand_tasks(whole):
            if not step:
                runs.setdefault(job_id, []).append(_job_of_sacct(job_id, values))
            elif _state(values["State"]) == "OUT_OF_MEMORY" and runs.get(job_id):
                runs[job_id][-1] = _out_of_memory(runs[job_id][-1])
    return {job_id: _latest(history) for job_id, history in runs.items()}


def _job_of_sacct(job_id: str, values: Mapping[str, str]) -> JobInfo:
    exit_code, signal = _exit_status(values["ExitCode"])
    return JobInfo(
        job_id=job_id,
        state=_state(values["State"]),
        reason=_word(values["Reason"]),
        exit_code=exit_code,
        signal=signal,
        nodes=_word(values["NodeList"]),
        submitted=_time(values["Submit"]),
        started=_time(values["Start"]),
        ended=_time(values["End"]),
    )


def _out_of_memory(job: JobInfo) -> JobInfo:
    """A job whose step had no memory left is only FAILED itself."""
    return replace(job, state="OUT_OF_MEMORY") if job.state == "FAILED" else job


def _latest(history: list[JobInfo]) -> JobInfo:
    """Accounting lists the runs of a requeued job in order."""
    failed = (node for run in history[:-1] if run.state in NODE_AT_FAULT for node in expand_nodes(run.nodes))
    return replace(history[-1], restarts=len(history) - 1, failed_nodes=tuple(dict.fromkeys(failed)))


def base_of(job_id: str) -> str:
    """`123` of `123_4`."""
    return job_id.partition("_")[0]


def expand_tasks(job_id: str) -> Iterator[str]:
    """`7_[0-2,5%2]` stands for 7_0, 7_1, 7_2 and 7_5; other ids for themselves."""
    base, bracket, listed = job_id.partition("_[")
    if not bracket:
        yield job_id
        return
    for part in listed.rstrip("]").partition("%")[0].split(","):
        first, _, last = part.partition("-")
        last, _, step = last.partition(":")
        if first.isdigit():
            yield from (f"{base}_{task}" for task in range(int(first), int(last or first) + 1, int(step or 1)))


def _state(text: str) -> str:
    """`CANCELLED by 0` and `CANCELLED+` are CANCELLED."""
    return text.split(" ")[0].rstrip("+") if text else ""


def _exit_status(text: str) -> tuple[int, int]:
    """(exit code, signal) of `3:0`, and of the status 768 that a waiting parent would see."""
    code, colon, signal = text.partition(":")
    if not code.lstrip("-").isdigit():
        return 0, 0
    if colon:
        return int(code), int(signal) if signal.isdigit() else 0
    status = int(code)
    return (status >> 8) & 0xFF, status & 0x7F


def _word(text: str) -> str:
    return "" if text in ("None", "(null)", "None assigned", "N/A", "Unknown") else text


def _time(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+", text) and int(text) > 0 else None
