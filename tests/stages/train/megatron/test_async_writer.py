from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.train.megatron import cpu

cpu.install()

from slime_stages.errors import InternalError  # noqa: E402
from slime_stages.run.digest import digest_file  # noqa: E402
from slime_stages.weights.checkpoints import MODEL, OPTIMIZER  # noqa: E402
from stages.train.megatron.async_writer import Plan, Writer  # noqa: E402


def plan_with_file(folder: Path, part: str) -> Plan:
    """One file, without any tensor, of the part."""
    name = f"{part}.distcp"
    buckets = {MODEL: [], OPTIMIZER: [], part: [(str(folder / name), name, ([], []))]}
    return Plan(buckets=buckets, folders={MODEL: folder, OPTIMIZER: folder}, transforms=None)


@pytest.mark.parametrize("background", [False, True])
def test_each_part_is_reported_once_it_is_written(tmp_path: Path, background: bool) -> None:
    writer = Writer(plan_with_file(tmp_path, OPTIMIZER), background=background)

    assert writer.outcome(MODEL) == []
    [written] = writer.outcome(OPTIMIZER)
    assert (written.name, written.digest) == ("optimizer.distcp", digest_file(tmp_path / "optimizer.distcp"))


def test_a_writer_that_dies_is_told_by_its_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "optimizer.distcp")  # nobody reads it, so that the writer stays in the middle of its work

    writer = Writer(plan_with_file(tmp_path, OPTIMIZER), background=True)
    assert writer.outcome(MODEL) == []
    writer._process.kill()

    outcome = writer.outcome(OPTIMIZER)
    assert isinstance(outcome, InternalError)
    assert outcome.message == "the checkpoint writer died with exit code -9"


@pytest.mark.parametrize("background", [False, True])
def test_after_a_failure_no_part_is_written(tmp_path: Path, background: bool) -> None:
    writer = Writer(plan_with_file(tmp_path / "absent", MODEL), background=background)

    first, second = writer.outcome(MODEL), writer.outcome(OPTIMIZER)

    assert isinstance(first, InternalError)
    assert "No such file or directory" in first.message
    assert isinstance(second, InternalError)
