from __future__ import annotations

from slime_stages.slurm.environment import submission_environment

WITHIN_A_JOB = {
    "PATH": "/bin",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "4",
    "SLURM_CPU_BIND": "mask",
    "SLURM_MEM_PER_NODE": "100",
    "SLURMD_NODENAME": "node1",
    "SRUN_CPUS_PER_TASK": "8",
    "SUBMITIT_EXECUTOR": "slurm",
    "PMI_RANK": "0",
    "CUDA_VISIBLE_DEVICES": "2",
    "MASTER_ADDR": "node1",
    "TMPDIR": "/scratch/job-77",
    "TEMP": "/scratch/mine",
    "HF_HOME": "/models",
}


def test_a_job_takes_nothing_over_from_the_job_that_submits_it_but_the_cluster() -> None:
    assert submission_environment((), WITHIN_A_JOB) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "TEMP": "/scratch/mine",
        "HF_HOME": "/models",
    }


def test_outside_of_jobs_devices_and_folders_are_the_persons_own() -> None:
    mine = {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": "/scratch/77", "MASTER_ADDR": "here"}

    assert submission_environment((), {**mine, "SLURM_MPI_TYPE": "pmix"}) == mine


def test_the_shell_says_whom_to_charge_only_where_the_header_does_not() -> None:
    shell = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "1", "SBATCH_WAIT": "1"}

    assert submission_environment(("partition",), shell) == {"SBATCH_ACCOUNT": "mine"}
