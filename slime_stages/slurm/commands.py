"""Running SLURM's own commands: their environment, and patience while the controller is away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slime_stages.errors import InternalError, RetryableError, UsageError

PATIENCE_SECONDS = 60.0
"""A controller that restarts is back within half a minute."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
CALL_SECONDS = 60.0
"""One call; SLURM's own timeouts are shorter."""

CONTROLLER_AWAY = re.compile(
    r"Unable to contact slurm controller|Connection (refused|timed out|reset)|connect failure|Socket timed out"
    r"|Zero Bytes were transmitted|Unexpected message received|Transport endpoint|Insane message length"
    r"|Munge encode failed|Protocol authentication error|Error connecting|slurmctld.*not responding|try again later"
    r"|Resource temporarily unavailable",
    re.IGNORECASE,
)

PREFIX = re.compile(r"^(?:\w+: )?(?:(?:\w+ )?(?:error|fatal): )?")
"""`sbatch: error: `, `slurm_load_jobs error: `."""

FORMATTING = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
"""Variables by which a user shapes or filters what the commands print."""


class SchedulerDown(RetryableError):
    """The controller has not answered for as long as a restart takes."""


class SchedulerMissing(UsageError):
    """SLURM's commands are not on this machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """The last line of stderr, without the command's name before it."""
        lines = [line for line in self.stderr.splitlines() if line.strip()] or [f"exit code {self.exit_code}"]
        return PREFIX.sub("", lines[-1]).strip()


def command_environment() -> dict[str, str]:
    """This process's environment (SLURM_CONF with it), so set that times are Unix times and lists are whole."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FORMATTING)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def call_scheduler(
    words: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS
) -> Answer:
    """Run a command once. SchedulerMissing if there is none of this name."""
    try:
        done = subprocess.run(
            words,
            env=command_environment() if environment is None else environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise SchedulerMissing(
            f"there is no `{words[0]}` on this machine", hint="type the command on a login node of SLURM"
        ) from error
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"Socket timed out after {seconds:.0f} s")
    return Answer(done.returncode, done.stdout, done.stderr)


def ask_scheduler(words: Sequence[str], *, patience_seconds: float | None = None) -> str:
    """What a command that only asks prints; asked again while the controller is away, then SchedulerDown."""
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    deadline, pause = time.monotonic() + patience, FIRST_PAUSE_SECONDS
    is_said = False
    while True:
        answer = call_scheduler(words)
        if answer.exit_code == 0:
            return answer.stdout
        if not CONTROLLER_AWAY.search(answer.stderr):
            raise InternalError(f"`{words[0]}` failed: {answer.complaint}", hint=" ".join(words))
        if time.monotonic() + pause > deadline:
            raise SchedulerDown(
                f"the SLURM controller does not answer: {answer.complaint}",
                hint="scontrol ping; then type the same command again: running jobs are not affected",
            )
        if not is_said:
            print(f"the SLURM controller does not answer; waiting up to {patience:.0f} s", file=sys.stderr, flush=True)
            is_said = True
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
