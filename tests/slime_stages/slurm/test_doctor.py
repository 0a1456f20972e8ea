from __future__ import annotations

import os
from pathlib import Path

import pytest

from slime_stages.errors import DataError, MissingInputError, RetryableError, SlimeStagesError, UsageError
from slime_stages.slurm.canary import group_headers
from slime_stages.slurm.doctor import examine, examine_room
from slime_stages.slurm.findings import advice, exit_code_of, fine, problem
from slime_stages.slurm.header import read_header
from slime_stages.slurm.machine import Facts, collect_facts, room_in
from slime_stages.slurm.node_findings import compare_packages, examine_network
from slime_stages.slurm.probe import submit_error

STAGES = ("rollout", "reward", "train", "sync")


def write_headers(folder: Path, *, setup: str = "", **directives: str) -> Path:
    """A folder of headers; `rollout="--gpus=1"` adds an option to one."""
    folder.mkdir(exist_ok=True)
    for stage in STAGES:
        option = f"#SBATCH {directives[stage]}\n" if stage in directives else ""
        text = f'#!/bin/bash\n#SBATCH --time=10\n{option}{setup}\nexec python -m stages.{stage} "$@"\n'
        (folder / f"{stage}.sbatch").write_text(text)
    return folder


def facts(**changes: object) -> Facts:
    values = {"host": "node1", "python": "3.11.7", "executable": "/env/bin/python", "packages": {"numpy": "2.3.0"}}
    return Facts(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no-commands").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))


@pytest.mark.parametrize(
    ("errors", "exit_code"),
    [
        ((), 0),
        ((RetryableError,), 75),
        ((RetryableError, MissingInputError), 66),
        ((MissingInputError, UsageError, RetryableError), 2),
        ((DataError,), 65),
    ],
)
def test_the_worst_finding_decides_the_exit_code(errors: tuple[type[SlimeStagesError], ...], exit_code: int) -> None:
    assert exit_code_of([fine("well"), advice("so so", "do"), *(problem(kind("bad")) for kind in errors)]) == exit_code


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_headers_and_programs_are_looked_at_all_the_same(tmp_path: Path) -> None:
    sbatch = write_headers(tmp_path / "sbatch", train="--output=train.log")

    findings = list(examine(tmp_path, sbatch=sbatch))

    assert exit_code_of(findings) == 2
    problems = [finding.text for finding in findings if finding.level == "problem"]
    assert problems == [
        f"{sbatch}/train.sbatch:3: --output is set by slime-stages",
        "there is no SLURM on this machine: no scheduler and no compute node was looked at",
    ]
    assert f"{sbatch}/sync.sbatch can be read; only sbatch knows whether it is accepted" in [f.text for f in findings]


@pytest.mark.usefixtures("no_slurm")
def test_a_run_that_has_not_begun_is_looked_for_where_it_will_be(tmp_path: Path) -> None:
    finding = next(examine(tmp_path / "runs" / "new", sbatch=tmp_path))

    assert finding.text.endswith(f"GiB free in {tmp_path}") or str(tmp_path) in finding.text


def test_room_is_what_the_file_system_tells(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)

    room = room_in(tmp_path)

    assert abs(room.bytes - usage.f_bavail * usage.f_frsize) < 2**30
    assert list(examine_room(tmp_path))


def test_stages_that_run_in_the_same_place_with_the_same_set_up_need_one_look(tmp_path: Path) -> None:
    sbatch = write_headers(tmp_path / "sbatch", setup="source env", rollout="--gpus=1", train="--partition=big")

    groups = group_headers([read_header(sbatch / f"{stage}.sbatch", stage) for stage in STAGES])

    assert [[header.stage for header in group] for group in groups] == [["rollout", "reward", "sync"], ["train"]]


def test_packages_that_differ_on_the_node_are_named() -> None:
    here = facts(packages={"numpy": "2.3.0", "torch": "2.9.0"})
    there = facts(packages={"numpy": "2.2.0", "sympy": "1.14"}, python="3.12.1")

    (finding,) = compare_packages(here, there, "the Python on node1")

    assert finding.level == "advice"
    assert finding.text == (
        "the Python on node1, /env/bin/python, has "
        "Python 3.12.1, not 3.11.7; numpy 2.2.0, not 2.3.0; sympy 1.14, not missing; torch missing, not 2.9.0"
    )


def test_a_node_whose_name_leads_nowhere_is_a_problem() -> None:
    there = facts(name_error="node1: Name or service not known")

    network, unknown = examine_network(there, "node1", Path("sbatch/train.sbatch"))

    assert (network.level, unknown.level, unknown.exit_code) == ("advice", "problem", 2)
    assert network.text.endswith("HF_HUB_OFFLINE=, TRANSFORMERS_OFFLINE=, WANDB_MODE=")


def test_a_program_that_cannot_be_loaded_is_told_with_its_error() -> None:
    assert collect_facts(["nothing"]).broken_imports == {
        "nothing": "ModuleNotFoundError: No module named 'stages.nothing'"
    }
    assert collect_facts(["reward"]).broken_imports == {}


def test_facts_hold_the_versions_of_what_slime_stages_asks_for() -> None:
    packages = collect_facts().packages

    assert {"slime-stages", "numpy", "pyarrow", "torch", "submitit"} <= set(packages)
    assert "pytest" not in packages


@pytest.mark.usefixtures("no_slurm")
def test_a_node_without_sbatch_cannot_submit() -> None:
    assert submit_error(["--partition=low"]) == "there is no `sbatch` on this machine"
