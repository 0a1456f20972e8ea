"""The test cluster itself: what it promises to the tests that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.daemons import is_running
from tests.slurm.jobs import node_of, state, submit, wait_for, wait_for_state
from tests.slurm.layout import ClusterSettings
from tests.slurm.packages import PackagesMissing, ensure_packages

pytestmark = pytest.mark.slurm


def processes_of(folder: Path) -> list[str]:
    """Names of daemons and jobs that have this folder on their command line or in their environment."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "environ"]):
        environment = process.info["environ"] or {}
        words = [*(process.info["cmdline"] or []), environment.get("SLURM_CONF", "")]
        is_guard = "guard" in words  # it ends by itself, after this process
        if process.pid != os.getpid() and not is_guard and any(str(folder) in word for word in words):
            found.append(process.info["name"])
    return found


def test_a_job_is_told_of_its_node_and_its_gpus(slurm: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = "echo $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES"
    job = slurm.run("sbatch", "--parsable", f"--output={output}", "--gpus=2", f"--wrap={words}")

    wait_for_state(slurm, job, "COMPLETED")

    assert output.read_text().split() == ["node1", "0,1"]


def test_a_killed_node_takes_its_jobs_along_and_they_run_again_elsewhere(slurm: Cluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = submit(slurm, f"echo $SLURM_JOB_NODELIST $$ >> {pids}; sleep 300")
    wait_for_state(slurm, job, "RUNNING")
    node = node_of(slurm, job)

    slurm.kill_node(node)

    wait_for_state(slurm, job, "PENDING", "RUNNING")
    wait_for_state(slurm, job, "RUNNING")
    wait_for(lambda: len(pids.read_text().splitlines()) == 2)
    (first_node, first_pid), (second_node, second_pid) = (run.split() for run in pids.read_text().splitlines())
    assert first_node == node
    assert second_node != node
    assert slurm.run("sacct", "-n", "-X", "-P", "-D", "-j", job, "-o", "state").split() == ["NODE_FAIL", "RUNNING"]
    assert (is_running(int(first_pid)), is_running(int(second_pid))) == (False, True)
    slurm.start_node(node)
    assert slurm.run("sinfo", "-h", "-n", node, "-p", "main", "-o", "%T") == "idle"


def test_a_job_outlives_its_slurmd(slurm: Cluster, tmp_path: Path) -> None:
    done = tmp_path / "done"
    job = submit(slurm, f"sleep 2; touch {done}")
    wait_for_state(slurm, job, "RUNNING")

    slurm.kill_slurmd("node1")

    wait_for(done.exists)


def test_jobs_are_known_again_after_the_controller_was_down(slurm: Cluster) -> None:
    job = submit(slurm, "sleep 300")
    wait_for_state(slurm, job, "RUNNING")

    slurm.stop_controller()
    with pytest.raises(Exception, match="Unable to contact slurm controller"):
        slurm.run("squeue")
    slurm.start_controller()

    wait_for_state(slurm, job, "RUNNING")


def test_an_account_that_the_user_is_not_in_is_refused(slurm: Cluster) -> None:
    with pytest.raises(Exception, match="Invalid account"):
        submit(slurm, "true", "--account=other")


def test_a_job_that_takes_more_memory_than_it_asked_for_is_ended(slurm: Cluster) -> None:
    hungry = f"exec {sys.executable} -c 'import time; x = bytearray(400_000_000); time.sleep(60)'"

    job = submit(slurm, hungry, "--mem=50")

    wait_for_state(slurm, job, "FAILED", "OUT_OF_MEMORY", "CANCELLED")


def test_a_second_cluster_without_accounting_lives_beside_the_first_and_leaves_nothing(
    slurm: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")

    with Cluster.new(folder, ClusterSettings(nodes=1, accounting=False, gpus=0)) as second:
        job = submit(second, "sleep 300")
        wait_for_state(second, job, "RUNNING")
        with pytest.raises(Exception, match="Invalid job id"):
            state(slurm, job)
        with pytest.raises(Exception, match="accounting storage is disabled"):
            second.run("sacct")

    assert processes_of(folder) == []


def test_a_cluster_ends_with_the_process_that_made_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("orphan")
    code = (
        "import os, pathlib, signal\n"
        "from tests.slurm.cluster import Cluster, ClusterSettings\n"
        f"with Cluster.new(pathlib.Path({str(folder)!r}), ClusterSettings(nodes=1, accounting=False)):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)

    wait_for(lambda: not processes_of(folder))


def test_where_packages_may_not_be_installed_the_line_to_type_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(PackagesMissing) as caught:
        ensure_packages(accounting=False)

    line = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
    assert str(caught.value).endswith(f"type as root: {line}")
