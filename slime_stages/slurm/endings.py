"""How a submission of a task stands or ended: which row of the verdicts' table it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slime_stages.slurm.jobs import Attempt, TaskEnd

if TYPE_CHECKING:
    from slime_stages.slurm.queue import JobInfo

QUEUED = {
    "queued: dependency": "DependencyNeverSatisfied",
    "queued: launch failed": "launch.failed.requeued.held",
    "queued: held": "JobHeld|held state|ReqNodeNotAvail.*held",
    "queued: impossible": "BadConstraints|^Invalid|NotAllowed|PartitionTimeLimit|PartitionNodeLimit|"
    "MaxWallDurationPerJobLimit|Max[A-Za-z]+PerJob|DeadLine",
}
"""Row → squeue's reasons for which a queued job does not start by itself."""

HOST_MEMORY = re.compile(
    r"oom[-_ ]?kill|out[-_ ]of[-_ ]memory|OutOfMemory$|exceeded (job |step )?memory limit|Cannot allocate memory",
    re.IGNORECASE | re.MULTILINE,
)
STEP_MEMORY = re.compile(r"^slurmstepd\S*: error: .*(oom[-_ ]?kill|memory limit)", re.IGNORECASE | re.MULTILINE)
"""What SLURM itself says of memory in a task's log."""
GPU_MEMORY = r"(CUDA|HIP|GPU)\b.{0,40}out of memory|torch\.(cuda\.)?OutOfMemoryError"
NODE_TROUBLE = (
    r"uncorrectable ECC|no CUDA-capable device|CUDA driver initiali[sz]ation failed|fallen off the bus|"
    r"unspecified launch failure|Stale file handle|Read-only file system|Input/output error"
)
LAST_WORDS = r"(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+[A-Z]))?"
LAST_WORDS_STATES = {
    "": "CANCELLED",
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
}
"""What SLURM wrote into the log of a job that it has forgotten → its state."""
ENDING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "UPDATE_DB")
"""States in which SLURM still has a task that has told how it ended."""
MEMORY_SIGNAL, KILLED, TERMINATED = 125, (9, 128 + 9), (15, 128 + 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One submission of a task, and what is known of it."""

    attempt: Attempt
    info: JobInfo | None
    """None: the scheduler knows nothing of it."""
    end: TaskEnd | None
    """None: it was killed before it could tell."""
    shard: int | None = None
    progress: int | None = None
    """Groups in the journal, or optimizer steps saved, when it ended; needed only where the task told nothing."""
    inputs_ready: bool = False
    """What it reads was committed before it began: a missing input is then no closed gate."""
    log: str = ""
    """The last lines of its stderr."""
    asked: Mapping[str, str | bool] = field(default_factory=dict)
    """sbatch options it was submitted with, such as `mem` and `time`."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """What its memory depends on, by the names in `advice.py:SIZES`."""

    @property
    def told(self) -> TaskEnd | None:
        """Its own record, unless that is of a run before SLURM put the job back into the queue."""
        is_older = self.end is not None and self.info is not None and self.end.restarts < self.info.restarts
        return None if is_older else self.end

    @property
    def reached(self) -> int:
        return max(self.end.progress if self.end else 0, self.progress or 0)


def kind_of(run: TaskRun, earlier: Sequence[TaskRun] = ()) -> str:
    """The row of the table for a submission, given the ones before it."""
    state, code = state_of(run), exit_code_of(run)
    if run.attempt.job_id is None:
        return "never submitted"
    if state == "PENDING":
        reason = run.info.reason if run.info else ""
        return next((row for row, words in QUEUED.items() if re.search(words, reason)), state)
    if state == "CANCELLED":
        return _kind_of_cancelled(run)
    if state in ENDING and run.told is not None:
        state = None
    if state is None and run.end is None:
        state = _state_by_log(run)
    if state == "TIMEOUT":
        return "TIMEOUT: got further" if got_further(run, earlier) else state
    if state not in ("FAILED", "COMPLETED", None):
        return state
    if code == 0:
        return "COMPLETED"
    return _kind_of_failure(run, code, earlier)


def _state_by_log(run: TaskRun) -> str:
    """Of a job that the scheduler has forgotten."""
    if STEP_MEMORY.search(run.log):
        return "OUT_OF_MEMORY"
    words = re.findall(LAST_WORDS, run.log)
    return LAST_WORDS_STATES.get(words[-1], "vanished") if words else "vanished"


def _kind_of_cancelled(run: TaskRun) -> str:
    if run.info and run.info.reason == "DependencyNeverSatisfied":  # "Dependency" is also a waiting job's, cancelled
        return "CANCELLED: dependency"
    return "OUT_OF_MEMORY" if STEP_MEMORY.search(run.log) else "CANCELLED"


def _kind_of_failure(run: TaskRun, code: int, earlier: Sequence[TaskRun]) -> str:
    signal = run.info.signal if run.info else 0
    if code in (2, 65):
        return f"exit {code}"
    if code == 66:
        return "exit 66" if run.inputs_ready else "exit 66: gate closed"
    if code == 75:
        return "exit 75: got further" if got_further(run, earlier) else "exit 75"
    text = run.told.message if run.told else run.log
    if re.search(GPU_MEMORY, text):
        return "GPU memory"
    reason = run.info.reason if run.info else ""
    if signal == MEMORY_SIGNAL or HOST_MEMORY.search(f"{text}\n{reason}") or STEP_MEMORY.search(run.log):
        return "OUT_OF_MEMORY"
    if re.search(NODE_TROUBLE, text):
        return "node trouble"
    if run.told is None and (signal in KILLED or code in KILLED):
        return "killed"
    return "told to end" if run.told is None and (signal in TERMINATED or code in TERMINATED) else "FAILED"


def got_further(run: TaskRun, earlier: Sequence[TaskRun]) -> bool:
    return run.reached > max((each.reached for each in earlier), default=0)


def essence_of(run: TaskRun) -> str:
    """The message without what differs from run to run: numbers, addresses, process ids."""
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+", "#", run.told.message if run.told else "")


def state_of(run: TaskRun) -> str | None:
    """SLURM's word; None where it knows nothing."""
    return run.info.state.split()[0].rstrip("+") if run.info and run.info.state else None


def exit_code_of(run: TaskRun) -> int:
    """As the task told; else SLURM's, where a signal counts as failure too."""
    if run.told is not None:
        return run.told.exit_code
    return (run.info.exit_code or (128 + run.info.signal if run.info.signal else 0)) if run.info else 1
