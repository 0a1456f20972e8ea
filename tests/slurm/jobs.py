"""Jobs of tests: submitted by sbatch, waited for by what the controller says."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.slurm.cluster import Cluster

NAME = "queue-test"


def submit(cluster: Cluster, command: str, *options: str) -> str:
    """Submit a shell command; the job's id."""
    words = ("sbatch", "--parsable", "--output=/dev/null", f"--job-name={NAME}", *options, f"--wrap={command}")
    return cluster.run(*words)


def state(cluster: Cluster, job_id: str) -> str:
    return cluster.run("squeue", "-h", "--states=all", f"--jobs={job_id}", "-o", "%T")


def wait_for(is_true: Callable[[], object], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def wait_for_state(cluster: Cluster, job_id: str, *states: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while (now := state(cluster, job_id)) not in states:
        assert time.monotonic() < deadline, f"{job_id} is {now}, not {' or '.join(states)}"
        time.sleep(0.1)


def node_of(cluster: Cluster, job_id: str) -> str:
    return cluster.run("squeue", "-h", f"--jobs={job_id}", "-o", "%N")
