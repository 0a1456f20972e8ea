"""What sbatch is given for an attempt, and the command that does the same work by hand.

The script is submitit's, made by its executor. What the job runs is `python -m slime_stages.slurm.inside FOLDER`: the
attempt's folder says all. There is no pickle to wait for, to lose between sbatch's answer and its renaming, or to find
stale after a requeue.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit

from slime_stages.errors import UsageError
from slime_stages.rundir import RunDir
from slime_stages.slurm.environment import offline_lines
from slime_stages.slurm.header import Header
from slime_stages.slurm.jobs import CHAIN_STAGE, Attempt
from slime_stages.slurm.names import SIGNAL_SECONDS, comment_of, job_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """An attempt with all that its script depends on."""

    run: RunDir
    attempt: Attempt
    header: Header
    dependencies: Sequence[str] = ()
    """Ids of jobs that have to end first, however they end."""
    exclude: Sequence[str] = ()
    """Nodes to keep away from, besides the header's."""
    array_parallelism: int | None = None
    """How many tasks of an array may run at once; None: as many as there is room for."""
    signal_seconds: int = SIGNAL_SECONDS
    folder: Path | None = None
    """Where the job starts; None: the current folder, as with sbatch."""

    @property
    def is_array(self) -> bool:
        return len(self.attempt.shards) > 1

    @property
    def working_folder(self) -> Path:
        return (self.folder or Path.cwd()).absolute()

    def script(self) -> str:
        """The exact text that sbatch is given."""
        executor = Executor(self.attempt.folder, python=self.header.python)
        executor.update_parameters(**self._parameters())
        if self.is_array:
            executor.parameters["map_count"] = len(self.attempt.shards)
        return executor.text().replace("#!/bin/bash", self.header.shell, 1)

    def command(self) -> str:
        """A script that makes the attempt's calls here, one after the other."""
        lines = [
            self.header.shell,
            f"# The work of {comment_of(self.run, self.attempt)}, done here and now.",
            "set -e",
            f"cd {shlex.quote(str(self.working_folder))}",
            *offline_lines(),
            *self.header.setup,
            *(self._call(shard) for shard in self.attempt.shards),
        ]
        return "\n".join(lines) + "\n"

    def _parameters(self) -> dict[str, Any]:
        own = self.header.directives
        options: dict[str, Any] = {
            **own,
            "chdir": str(self.working_folder),
            "kill-on-invalid-dep": "yes",
        }
        if "no-requeue" not in own:
            options["requeue"] = True
        if self.dependencies:
            options["dependency"] = "afterany:" + ":".join(self.dependencies)
        if self.exclude:
            options["exclude"] = ",".join([*([str(own["exclude"])] if "exclude" in own else []), *self.exclude])
        comment = comment_of(self.run, self.attempt)
        options["comment"] = f"{comment}; {own['comment']}" if "comment" in own else comment
        return {
            "job_name": job_name(self.run),
            **dict.fromkeys(("time", "nodes", "wckey")),  # submitit's own defaults; the header's stand below
            "signal_delay_s": self.signal_seconds,
            "array_parallelism": self.array_parallelism or len(self.attempt.shards),
            "setup": self._setup(),
            "srun_args": ["--kill-on-bad-exit=1", *_others(self.header.srun)],
            "additional_parameters": options,
        }

    def _setup(self) -> list[str]:
        told = shlex.quote(f"the set-up of {self.attempt.stage} failed, see {self.header.path}:")
        lines = [
            "set -e",
            f'set_up_failed() {{ echo {told} "$1" >&2; exit 1; }}',
            "trap 'set_up_failed \"$BASH_COMMAND\"' EXIT",
            *offline_lines(),
            *self.header.setup,
            "trap - EXIT",
        ]
        if "cpus-per-task" in self.header.directives:
            lines.append('export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"')  # srun does not ask sbatch's any more
        if "export" in self.header.directives:
            lines.append("export SLURM_EXPORT_ENV=ALL")  # else srun keeps the set-up's variables from the task
        return lines

    def _call(self, shard: int | None) -> str:
        attempt, run = self.attempt, shlex.quote(str(self.run.root.absolute()))
        if attempt.stage == CHAIN_STAGE:
            return f"{self.header.python} -m slime_stages.cli.main advance --run {run}"
        words = f"{self.header.python} -m stages.{attempt.stage} --run {run} --iter {attempt.iteration}"
        words += "" if shard is None else f" --shard {shard}"
        words += "" if attempt.split == "train" else f" --eval {shlex.quote(attempt.split)}"
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
    (folder / "command.sh").write_text(submission.command())
    (folder / "command.sh").chmod(0o755)
    script = folder / "script.sbatch"
    script.write_text(submission.script())
    return script


def _others(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith(("--kill-on-bad-exit", "-K"))]
