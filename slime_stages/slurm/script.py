"""What sbatch is given for an attempt, and the command that does the same work by hand.

The script is submitit's, made by its executor. What the job runs is `python -m slime_stages.slurm.inside FOLDER`: the
attempt's folder says all. There is no pickle to wait for, to lose between sbatch's answer and its renaming, or to find
stale after a requeue.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit

from slime_stages.errors import UsageError
from slime_stages.named_rewards import name_of
from slime_stages.run.rundir import program_of
from slime_stages.slurm.environment import offline_lines
from slime_stages.slurm.header import COMMANDS
from slime_stages.slurm.names import comment_of, job_name
from slime_stages.slurm.submission import Submission


def script_text(submission: Submission) -> str:
    """The exact text that sbatch is given."""
    executor = Executor(submission.attempt.folder, python=submission.header.python)
    executor.update_parameters(**_parameters(submission))
    if submission.is_array:
        executor.parameters["map_count"] = len(submission.attempt.shards)
    return executor.text().replace("#!/bin/bash", submission.header.shell, 1)


def _command(submission: Submission) -> str:
    """A script that makes the attempt's calls here: one after the other, or side by side where each goes on to later
    iterations, which it does as they are trained."""
    calls = [_call(submission, shard) for shard in submission.attempt.shards]
    if submission.attempt.until is not None:
        calls = [
            f"# Each waits for the weights of the next iteration: let reward, train and sync run beside it, up to "
            f"{submission.attempt.until - 1}.",
            *(f"{call} &" for call in calls),
            "for stream in $(jobs -p); do wait $stream; done",
        ]
    lines = [
        submission.header.shell,
        f"# The work of {comment_of(submission.run, submission.attempt)}, done here and now.",
        "set -e",
        f"cd {shlex.quote(str(submission.working_folder))}",
        *offline_lines(),
        *submission.header.setup,
        *calls,
    ]
    return "\n".join(lines) + "\n"


def _parameters(submission: Submission) -> dict[str, Any]:
    own = submission.header.directives
    options: dict[str, Any] = {
        **own,
        "chdir": str(submission.working_folder),
        "kill-on-invalid-dep": "yes",
    }
    if "no-requeue" not in own:
        options["requeue"] = True
    if submission.dependencies:
        options["dependency"] = "afterany:" + ":".join(submission.dependencies)
    if submission.exclude:
        options["exclude"] = ",".join([*([str(own["exclude"])] if "exclude" in own else []), *submission.exclude])
    comment = comment_of(submission.run, submission.attempt)
    options["comment"] = f"{comment}; {own['comment']}" if "comment" in own else comment
    return {
        "job_name": job_name(submission.run),
        **dict.fromkeys(("time", "nodes", "wckey")),  # submitit's own defaults; the header's stand below
        "signal_delay_s": submission.signal_seconds,
        "array_parallelism": submission.array_parallelism or len(submission.attempt.shards),
        "setup": _setup(submission),
        "srun_args": ["--kill-on-bad-exit=1", *_others(submission.header.srun)],
        "additional_parameters": options,
    }


def _setup(submission: Submission) -> list[str]:
    told = shlex.quote(f"the set-up of {submission.attempt.stage} failed, see {submission.header.path}:")
    lines = [
        "set -e",
        f'set_up_failed() {{ echo {told} "$1" >&2; exit 1; }}',
        "trap 'set_up_failed \"$BASH_COMMAND\"' EXIT",
        *offline_lines(),
        *submission.header.setup,
        "trap - EXIT",
    ]
    if "cpus-per-task" in submission.header.directives:
        lines.append('export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"')  # srun does not ask sbatch's any more
    if "export" in submission.header.directives:
        lines.append("export SLURM_EXPORT_ENV=ALL")  # else srun keeps the set-up's variables from the task
    return lines


def _call(submission: Submission, shard: int | None) -> str:
    attempt, run = submission.attempt, shlex.quote(str(submission.run.root.absolute()))
    if attempt.stage in COMMANDS.values():
        command = next(word for word, stage in COMMANDS.items() if stage == attempt.stage)
        return f"{submission.header.python} -m slime_stages.cli.main {command} --run {run}"
    words = f"{submission.header.python} -m stages.{program_of(attempt.stage)} --run {run} --iter {attempt.iteration}"
    words += "" if (name := name_of(attempt.stage)) is None else f" --as {name}"
    words += "" if shard is None else f" --shard {shard}"
    words += "" if attempt.split == "train" else f" --eval {shlex.quote(attempt.split)}"
    words += "" if attempt.until is None else f" --until {attempt.until}"
    return f'{words} "$@"'


class Executor(submitit.SlurmExecutor):
    """submitit's executor for SLURM; what it submits is a folder's name."""

    @classmethod
    def affinity(cls) -> int:
        return 2  # the script can be shown where there is no SLURM; sbatch is looked for when it is called

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m slime_stages.slurm.inside {shlex.quote(str(self.folder))}"

    def text(self) -> str:
        return self._make_submission_file_text(self._submitit_command_str, uid="")


def check_folder(folder: Path) -> None:
    """UsageError for a folder whose name SLURM would read as a pattern for job ids."""
    if "%" in str(folder) or "\\" in str(folder):
        raise UsageError(f"SLURM cannot write logs into {folder}", hint="a run's path holds neither % nor \\")


def write_scripts(submission: Submission) -> Path:
    """Write `script.sbatch` and `command.sh` into the attempt's folder; the path of the first."""
    folder = submission.attempt.folder
    check_folder(folder)
    (folder / "command.sh").write_text(_command(submission))
    (folder / "command.sh").chmod(0o755)
    script = folder / "script.sbatch"
    script.write_text(script_text(submission))
    return script


def _others(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith(("--kill-on-bad-exit", "-K"))]
