from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slime_stages.weights import folders
from slime_stages.weights.folders import (
    has_live_writer,
    kept_numbers,
    new_temporary_folder,
    numbered_folders,
    remove_dead_folders,
    remove_folder,
    replace_folder,
)

ABANDON = """
from pathlib import Path

import pytest
from slime_stages.weights.folders import new_temporary_folder
(new_temporary_folder(Path({target!r})) / "data").write_text("half")
"""


def abandon(target: Path) -> None:
    """Leave a temporary folder of a process that is gone."""
    subprocess.run([sys.executable, "-c", ABANDON.format(target=str(target))], check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_retention_keeps_the_last_every_nth_and_the_needed_ones() -> None:
    assert kept_numbers(range(1, 12), keep_last=2, keep_every=5, needed={3, 99}) == {3, 5, 10, 11}
    assert kept_numbers(range(1, 12), keep_last=1, keep_every=None, needed=set()) == {11}


def test_only_folders_with_a_number_are_versions(tmp_path: Path) -> None:
    for name in ("000010", "000002", "notes", ".tmp-1@host@a-000003"):
        (tmp_path / name).mkdir()
    (tmp_path / "000005").write_text("a file")

    assert numbered_folders(tmp_path, r"(\d{6})") == {2: tmp_path / "000002", 10: tmp_path / "000010"}
    assert numbered_folders(tmp_path / "absent", r"(\d{6})") == {}


def test_a_folder_replaces_what_lies_at_its_target(tmp_path: Path) -> None:
    target = tmp_path / "000001"
    for content in ("old", "new"):
        temporary = new_temporary_folder(target)
        (temporary / "data").write_text(content)
        replace_folder(temporary, target)

    assert (target / "data").read_text() == "new"
    assert names(tmp_path) == ["000001"]


def test_a_removed_folder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "000001").mkdir()
    (tmp_path / "000001" / "data").write_text("x")

    remove_folder(tmp_path / "000001")

    assert names(tmp_path) == []


def test_folders_of_dead_processes_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    abandon(tmp_path / "iter_0000004.optimizer")
    own = new_temporary_folder(tmp_path / "iter_0000005")
    [dead] = [path for path in tmp_path.iterdir() if path != own]
    shutil.copytree(dead, dead.with_name(f"{dead.name.rpartition('-')[0]}-{dead.name}"))  # it died in deleting one

    remove_dead_folders(tmp_path)

    assert names(tmp_path) == [own.name]


def test_a_folder_of_another_host_is_dead_once_it_has_not_changed_for_an_hour(tmp_path: Path) -> None:
    foreign = tmp_path / f".tmp-{os.getpid()}@elsewhere@1a-000003"
    foreign.mkdir()
    assert remove_dead_folders(tmp_path) == []

    long_ago = foreign.stat().st_mtime - folders.IDLE_SECONDS - 60
    os.utime(foreign, (long_ago, long_ago))

    assert remove_dead_folders(tmp_path) == [foreign]


def test_a_target_has_a_live_writer_while_a_living_process_owns_a_temporary_folder_for_it(tmp_path: Path) -> None:
    target = tmp_path / "iter_0000004"
    abandon(tmp_path / "iter_0000004.optimizer")
    new_temporary_folder(tmp_path / "iter_0000005.model")
    assert not has_live_writer(target)

    new_temporary_folder(tmp_path / "iter_0000004.optimizer")

    assert has_live_writer(target)


def test_a_folder_that_another_attempt_puts_in_place_meanwhile_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, temporary = tmp_path / "000001", tmp_path / "ours"
    temporary.mkdir()
    (temporary / "name").write_text("ours")
    rename = Path.rename
    faster = [tmp_path / "theirs"]
    faster[0].mkdir()
    (faster[0] / "name").write_text("theirs")

    def rename_after_another(path: Path, to: Path) -> Path:
        if path == temporary and faster:
            rename(faster.pop(), target)
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    replace_folder(temporary, target)

    assert (target / "name").read_text() == "ours"
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
