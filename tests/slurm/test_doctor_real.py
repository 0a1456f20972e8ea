"""The doctor's findings on a real cluster, healthy and not."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import pytest

from slime_stages.slurm import canary, commands
from slime_stages.slurm.doctor import examine
from slime_stages.slurm.findings import Finding, exit_code_of
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import submit, wait_for_state
from tests.slurm.layout import ClusterSettings

pytestmark = pytest.mark.slurm

STAGES = ("rollout", "reward", "train", "sync")


def write_headers(folder: Path, *, setup: str = "", option: str = "--mem=500M") -> Path:
    folder.mkdir(exist_ok=True)
    path = f"export PATH={Path(sys.executable).parent}:$PATH"
    for stage in STAGES:
        lines = ["#!/bin/bash", "#SBATCH --time=10", f"#SBATCH {option}", path, setup, f"exec python -m stages.{stage}"]
        (folder / f"{stage}.sbatch").write_text("\n".join(lines) + ' "$@"\n')
    return folder


def problems(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if finding.level == "problem"]


def examined(folder: Path, sbatch: Path, wait_seconds: float = 120.0, **overrides: str) -> list[Finding]:
    findings = list(examine(folder, sbatch=sbatch, overrides=overrides, wait_seconds=wait_seconds))
    assert not list(folder.glob(".doctor-*"))
    return findings


@pytest.mark.usefixtures("slurm")
def test_on_a_healthy_cluster_all_is_well(tmp_path: Path) -> None:
    findings = examined(tmp_path, write_headers(tmp_path / "sbatch"))

    assert problems(findings) == []
    assert exit_code_of(findings) == 0
    assert findings[-1].text.startswith(f"jobs of rollout, reward, train, sync: node1 sees {tmp_path}")
    assert findings[-1].text.endswith("they may submit others")
    assert "packages as here" in findings[-1].text


@pytest.mark.usefixtures("slurm")
def test_a_header_that_sbatch_refuses_is_told_with_its_line(tmp_path: Path) -> None:
    sbatch = write_headers(tmp_path / "sbatch", option="--partition=nowhere")

    findings = examined(tmp_path, sbatch)

    assert exit_code_of(findings) == 2
    assert problems(findings)[0].startswith(f"{sbatch}/rollout.sbatch:3: sbatch refuses --time=10 --partition=nowhere")
    assert exit_code_of(examined(tmp_path, sbatch, wait_seconds=0.0, partition="low")) == 75


def test_a_folder_that_a_node_does_not_have_is_not_shared(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "VISIBLE_SECONDS", 3.0)
    sbatch = write_headers(tmp_path / "sbatch", option="--nodelist=node3")
    runs = tmp_path / "runs"
    runs.mkdir()
    slurm.kill_slurmd("node3")
    own_disk = f"mount -t tmpfs none {runs} && exec slurmd -N node3"
    slurm.daemons.start("slurmd-node3", "unshare", "--mount", "sh", "-c", own_disk)

    findings = examined(runs, sbatch)

    slurm.kill_slurmd("node3")
    assert exit_code_of(findings) == 66
    assert problems(findings)[0].startswith(f"{runs} is not seen from node3; the job ended ")


@pytest.mark.usefixtures("slurm")
def test_a_set_up_that_fails_is_told_with_the_command(tmp_path: Path) -> None:
    sbatch = write_headers(tmp_path / "sbatch", setup="module load cuda/99")

    findings = examined(tmp_path, sbatch)

    assert exit_code_of(findings) == 2
    assert problems(findings)[0].startswith(f"{sbatch}/rollout.sbatch: its set-up, or Python after it, fails on node")
    assert problems(findings)[0].endswith("this failed: module load cuda/99")


@pytest.mark.usefixtures("slurm")
def test_jobs_that_may_not_submit_are_told_of(tmp_path: Path) -> None:
    sbatch = write_headers(tmp_path / "sbatch", setup="export SLURM_CONF=/dev/null")

    findings = examined(tmp_path, sbatch)

    assert exit_code_of(findings) == 2
    assert "may not submit jobs: " in problems(findings)[0]
    assert next(finding.hint for finding in findings if finding.exit_code) == (
        "type slime-stages iter --executor slurm --drive here, and let it run"
    )


def test_a_full_cluster_leaves_it_open_and_the_job_is_cancelled(slurm: Cluster, tmp_path: Path) -> None:
    busy = submit(slurm, "sleep 300", "--nodes=4", "--exclusive")
    wait_for_state(slurm, busy, "RUNNING")

    findings = examined(tmp_path, write_headers(tmp_path / "sbatch"), wait_seconds=2.0)

    assert exit_code_of(findings) == 75
    assert "was PENDING (Resources) for 2 s" in problems(findings)[0] or "(Priority)" in problems(findings)[0]
    assert slurm.run("squeue", "-h", "-o", "%i") == busy


def test_a_controller_that_is_down_is_something_to_try_again(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PATIENCE_SECONDS", 1.0)
    slurm.stop_controller()

    findings = examined(tmp_path, write_headers(tmp_path / "sbatch"))

    assert exit_code_of(findings) == 75
    assert problems(findings)[0].startswith("the SLURM controller does not answer: ")


def test_a_limit_of_few_jobs_is_told_of(slurm: Cluster, tmp_path: Path) -> None:
    user = ("modify", "user", getpass.getuser(), "where", "account=tests", "set")
    slurm.run("sacctmgr", "-i", *user, "MaxSubmitJobs=10")
    try:
        findings = examined(tmp_path, write_headers(tmp_path / "sbatch"), wait_seconds=0.0)
    finally:
        slurm.run("sacctmgr", "-i", *user, "MaxSubmitJobs=-1")

    advice = [finding.text for finding in findings if finding.level == "advice"]
    assert "only 10 jobs of yours may be in the queue at once (account tests); each shard counts" in advice


def test_without_accounting_all_is_well_but_for_advice(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        Cluster.new(tmp_path_factory.mktemp("bare"), ClusterSettings(nodes=1, accounting=False)) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", cluster.slurm_conf)
        findings = examined(tmp_path, write_headers(tmp_path / "sbatch"))

    assert exit_code_of(findings) == 0
    assert any(finding.text.startswith("accounting is off") for finding in findings if finding.level == "advice")
