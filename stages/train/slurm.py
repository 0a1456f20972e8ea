"""The tasks that SLURM has started for a train job, and whether they are as many as the config wants."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from slime_stages.config.sections.train import Train
from slime_stages.errors import RetryableError, UsageError
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from stages.train.ranks import MEETING_SECONDS, Ranks

FOLDER = ".tasks"
"""Below the iteration's train folder: where the tasks of a job meet."""
ENDED_WITH_THE_FIRST = 1
"""Lower than any other code that is not 0."""


def slurm_ranks(call: StageCall, environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """This process among the tasks of its job step; None if it is the only one.

    A job that was put back into the queue keeps its id, and its tasks meet anew: its restarts are counted in the name.
    """
    if task_count(environment) == 1:
        return None
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_START_TIME")
    attempt = "-".join(environment.get(name) or "0" for name in names)
    return Ranks(
        RunDir(call.run).stage_path("train", call.iteration) / FOLDER / attempt,
        rank=int(environment["SLURM_PROCID"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        count=task_count(environment),
        host=own_name(environment),
    )


def task_count(environment: Mapping[str, str] = os.environ) -> int:
    """Processes that `srun` has started together, this one among them; 1 if it was not srun that started it.

    In a batch script SLURM_NTASKS is what srun would start.
    """
    return int(environment["SLURM_NTASKS"]) if "SLURM_STEP_ID" in environment else 1


def exit_code_of_task(code: int, environment: Mapping[str, str] = os.environ) -> int:
    """What this process ends with; `srun` ends with the highest code of its tasks, and the first one's is to count.

    The others may be drained only because the first one has ended, before they knew of it.
    """
    is_other = task_count(environment) > 1 and environment["SLURM_PROCID"] != "0"
    return ENDED_WITH_THE_FIRST if is_other and code == RetryableError.exit_code else code


def own_name(environment: Mapping[str, str] = os.environ) -> str:
    """A name of this node by which the others find it: SLURM's, or its own."""
    for name in (environment.get("SLURMD_NODENAME"), socket.gethostname()):
        try:
            if name and socket.getaddrinfo(name, None):
                return name
        except socket.gaierror:
            continue
    return "localhost"


def check_process_count(config: Train, environment: Mapping[str, str] = os.environ) -> None:
    """UsageError if there are not as many trainer processes as the config wants, or not on as many nodes."""
    started, wanted = task_count(environment), config.process_count
    nodes, each = config.actor_num_nodes, config.actor_num_gpus_per_node
    if started == wanted or (started == 1 and nodes == 1):
        return
    says = f"the config wants {wanted} trainer processes (actor_num_nodes {nodes} x actor_num_gpus_per_node {each})"
    header = f"#SBATCH --nodes={nodes} and #SBATCH --ntasks-per-node={each} in sbatch/train.sbatch"
    if started == 1:
        raise UsageError(f"{says}; this one was started alone", hint=f"{header}, started by srun in a job")
    raise UsageError(
        f"{says}; the job has {started} tasks (SLURM_NTASKS)",
        hint=f"{header}, or set actor_num_nodes x actor_num_gpus_per_node to {started}",
    )


def remove_old_folders(stage_folder: Path) -> None:
    """Delete where the tasks of earlier jobs met, if they left anything there."""
    for folder in (stage_folder / FOLDER).glob("*"):
        if time.time() - folder.stat().st_mtime > 2 * MEETING_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
