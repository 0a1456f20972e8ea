"""What a job must not take over from the shell, or the job, that submits it; and what keeps it off the network."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "offline"}
"""Set in jobs unless the person, or the set-up, has set them."""

OF_A_JOB = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SUBMITIT_", "PMI_", "PMI2_", "PMIX_")
"""Prefixes of what tells a job, or a command of SLURM, about one job. A job in a job that has them asks for the outer
one's tasks, memory and binding."""

CLIENT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT")
"""How commands find the cluster; they stay."""

DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
}
"""Where to run and whom to charge: these come from the shell as long as the header does not say.

sbatch prefers its variables to the script's lines, so that any other one would override the header unseen.
"""

OF_AN_ALLOCATION = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "ROCR_VISIBLE_DEVICES",
    "WORLD_SIZE",
    "ZE_AFFINITY_MASK",
)
TEMPORARY_FOLDERS = ("TMPDIR", "TMP", "TEMP")


def submission_environment(
    options: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment for `sbatch`, which the job gets too; `options` are those that the script itself gives."""
    source = os.environ if environment is None else environment
    job = source.get("SLURM_JOB_ID")
    return {name: value for name, value in source.items() if _stays(name, value, job, options)}


def offline_lines() -> list[str]:
    """The same defaults for a shell."""
    return [f'export {name}="${{{name}:-{value}}}"' for name, value in OFFLINE.items()]


def _stays(name: str, value: str, job: str | None, options: Collection[str]) -> bool:
    if name in CLIENT:
        return True
    if name in DEFAULTS:
        return DEFAULTS[name] not in options
    if name.startswith(OF_A_JOB):
        return False
    if job is None:
        return True
    # a folder made for the outer job goes with it
    return name not in OF_AN_ALLOCATION and not (name in TEMPORARY_FOLDERS and job in value)
