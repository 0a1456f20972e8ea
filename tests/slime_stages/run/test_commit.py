"""Publishing: a commit leaves data and manifest, once; leftovers of the dead go; late files are waited for."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.claims import commit
from slime_stages.run.commit import (
    create_file,
    fsync_path,
    remove_leftovers,
    replace_file,
    temporary_name,
    wait_for_file,
    written_file,
)
from slime_stages.run.manifest import check_data, read_manifest
from tests.slime_stages.publishing import committed, names, publish


def test_a_commit_leaves_data_and_manifest_and_nothing_else(tmp_path: Path) -> None:
    assert publish(tmp_path, b"first")

    assert committed(tmp_path) == b"first"
    assert names(tmp_path) == ["shard.json", "shard.parquet"]


def test_the_second_attempt_finds_the_first_and_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path, b"first")

    assert not publish(tmp_path, b"second")

    assert committed(tmp_path) == b"first"
    assert names(tmp_path) == ["shard.json", "shard.parquet"]


def test_data_without_a_manifest_is_a_dead_attempts_and_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "shard.parquet").write_bytes(b"dead")

    assert publish(tmp_path, b"alive")

    assert committed(tmp_path) == b"alive"


def test_a_file_is_created_once(tmp_path: Path) -> None:
    assert create_file(tmp_path / "deep" / "plan.json", b"one")
    assert not create_file(tmp_path / "deep" / "plan.json", b"two")

    assert (tmp_path / "deep" / "plan.json").read_bytes() == b"one"
    assert names(tmp_path / "deep") == ["plan.json"]


def test_a_link_that_was_made_though_the_answer_got_lost_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def told_late(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", str(target))

    monkeypatch.setattr(os, "link", told_late)

    assert create_file(tmp_path / "plan.json", b"ours")


def test_a_replaced_file_has_its_last_content(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        replace_file(tmp_path / "config.json", content)

    assert (tmp_path / "config.json").read_bytes() == b"two"
    assert names(tmp_path) == ["config.json"]


def test_a_file_whose_writing_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with written_file(tmp_path / "shard.parquet") as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert names(tmp_path) == []


def test_temporary_files_are_no_parquet_files_to_a_glob(tmp_path: Path) -> None:
    temporary_name(tmp_path / "shard-00000-of-00001.parquet").touch()

    assert list(tmp_path.glob("*.parquet")) == []


def test_data_is_durable_before_its_name_and_its_name_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written_file(tmp_path / "shard.parquet") as temporary:
        temporary.write_bytes(b"data")
    calls = recorded(monkeypatch, tmp_path)

    assert commit({tmp_path / "shard.parquet": temporary}, tmp_path / "shard.json", b"{}")

    assert calls == [
        "fsync data",
        "fsync claim",
        "link .claim-shard.json",
        "unlink claim",
        "fsync folder",
        "rename shard.parquet",
        "fsync folder",
        "fsync manifest",
        "link shard.json",
        "unlink manifest",
        "fsync folder",
        "unlink .claim-shard.json",
    ]


def recorded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """The calls that touch the disk, from here on; temporary files go by what they become."""
    calls: list[str] = []
    aliases = {".claim-shard.json.part": "claim", "shard.json.part": "manifest", "shard.parquet.part": "data"}

    def name(path: Any) -> str:
        path = Path(path)
        ends = [alias for end, alias in aliases.items() if path.name.startswith(".tmp-") and path.name.endswith(end)]
        return "folder" if path == folder else (ends or [path.name])[0]

    def noted(function: Callable[..., None], target: Callable[[Any], Any]) -> None:
        def call(*args: Any) -> None:
            calls.append(f"{function.__name__} {name(target(args[-1]))}")
            function(*args)

        monkeypatch.setattr(os, function.__name__, call)

    noted(os.fsync, lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    for function in (os.link, os.rename, os.unlink):
        noted(function, Path)
    return calls


def test_a_claim_whose_data_was_deleted_by_hand_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".claim-shard.json").write_bytes(b".tmp-gone-1-0000000000000000-shard.parquet.part 1\n{}")

    assert publish(tmp_path, b"alive")

    assert committed(tmp_path) == b"alive"
    assert names(tmp_path) == ["shard.json", "shard.parquet"]


def test_leftovers_of_dead_processes_go_and_those_of_living_and_other_ones_stay(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    host = socket.gethostname()
    dead = f".tmp-{host}-{child.pid}-00000000000000ff-shard.parquet.part"
    alive = f".tmp-{host}-{os.getpid()}-00000000000000ff-shard.parquet.part"
    elsewhere = f".tmp-{host}-7-{child.pid}-00000000000000ff-shard.parquet.part"
    for name in (dead, alive, elsewhere, ".tmp-notes", "shard.parquet"):
        (tmp_path / name).touch()

    remove_leftovers(tmp_path)

    assert names(tmp_path) == sorted([alive, elsewhere, ".tmp-notes", "shard.parquet"])


def test_leftovers_of_another_machine_go_after_a_day(tmp_path: Path) -> None:
    for age_seconds, name in ((86_000, "young"), (87_000, "old")):
        path = tmp_path / f".tmp-elsewhere-7-00000000000000ff-{name}.part"
        path.touch()
        os.utime(path, (time.time() - age_seconds,) * 2)

    remove_leftovers(tmp_path)

    assert names(tmp_path) == [".tmp-elsewhere-7-00000000000000ff-young.part"]


def test_temporary_names_tell_their_owner_and_never_repeat(tmp_path: Path) -> None:
    first, second = temporary_name(tmp_path / "a-b.json"), temporary_name(tmp_path / "a-b.json")

    assert first != second
    assert first.parent == tmp_path
    assert first.name.startswith(f".tmp-{socket.gethostname()}-{os.getpid()}-")
    assert first.name.endswith("-a-b.json.part")


def test_a_file_that_another_machine_writes_late_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "late" / "shard.json"

    def write() -> None:
        time.sleep(0.1)
        path.parent.mkdir()
        path.touch()

    writer = threading.Thread(target=write)
    writer.start()
    wait_for_file(path, timeout_seconds=10, what="the shard", hint="")
    writer.join()

    assert path.exists()


def test_a_file_that_does_not_come_is_missing_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"rollout shard 3 is missing: .*shard\.json$") as caught:
        wait_for_file(tmp_path / "shard.json", timeout_seconds=0.05, what="rollout shard 3", hint="rerun it")

    assert (caught.value.exit_code, caught.value.hint) == (66, "rerun it")


def test_data_altered_after_its_commit_is_found(tmp_path: Path) -> None:
    publish(tmp_path, b"first")
    path = tmp_path / "shard.json"
    manifest = read_manifest(path)

    (tmp_path / "shard.parquet").write_bytes(b"fir5t")
    with pytest.raises(DataError, match="has digest"):
        check_data(path, manifest)
    (tmp_path / "shard.parquet").write_bytes(b"fir")
    with pytest.raises(DataError, match="has 3 bytes, its manifest says 5"):
        check_data(path, manifest)
    (tmp_path / "shard.parquet").unlink()
    with pytest.raises(MissingInputError, match="is gone, but its manifest is there"):
        check_data(path, manifest)


def test_a_folder_can_be_made_durable(tmp_path: Path) -> None:
    fsync_path(tmp_path)
