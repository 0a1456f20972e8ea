"""Publishing: all or nothing through kills, races and full disks; the data in place is always the manifest's."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_stages.commit import (
    commit,
    create_file,
    fsync_path,
    remove_leftovers,
    replace_file,
    temporary_name,
    wait_for_file,
    written_file,
)
from slime_stages.errors import DataError, MissingInputError, RetryableError
from slime_stages.manifest import Manifest, check_data, commit_data, read_manifest
from slime_stages.schema import REWARD
from slime_stages.shards import ShardWriter

ROUNDS = 40
RACERS = 3
CALLS = 13
"""Calls of `publish` that change the disk or make it durable: one to write the file, twelve to commit it."""


def publish(folder: Path, content: bytes) -> bool:
    """One attempt at the same piece of work."""
    with written_file(folder / "shard.parquet") as temporary:
        temporary.write_bytes(content)
    manifest = Manifest(kind="rollout", run_id=content.decode(), iteration=0, data="shard.parquet")
    return commit_data(manifest, temporary=temporary, manifest_path=folder / "shard.json")


def committed(folder: Path) -> bytes | None:
    """The data that counts, after a look that it is the manifest's; None if there is none."""
    path = folder / "shard.json"
    if not path.exists():
        return None
    manifest = read_manifest(path)
    data = check_data(path, manifest).read_bytes()
    assert data == manifest.run_id.encode()
    return data


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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

    assert commit(tmp_path / "shard.parquet", temporary, tmp_path / "shard.json", b"{}")

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


KILLED_AT = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from tests.slime_stages.test_commit import publish

    left = int(sys.argv[2])

    def deadly(function):
        def call(*args, **kwargs):
            global left
            left -= 1
            if left == 0 and sys.argv[3] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

    for name in ("rename", "link", "fsync", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
    for number in range(50):
        folder = Path(sys.argv[1], str(number))
        child = os.fork()
        if child == 0:
            left = number + 1
            publish(folder, b"killed")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(number)
            break
""")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_any_call_commits_all_or_nothing_and_a_rerun_completes(tmp_path: Path, moment: str) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED_AT)
    runs = tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, str(script), str(runs), "0", moment],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    call_count = int(done.stdout)
    assert call_count == CALLS

    outcomes = []
    for number in range(call_count):
        folder = runs / str(number)
        outcomes.append(committed(folder))
        remove_leftovers(folder)
        won = publish(folder, b"rerun")
        assert committed(folder) == (b"rerun" if won else b"killed")
        remove_leftovers(folder)
        assert names(folder) == ["shard.json", "shard.parquet"]
    assert outcomes == sorted(outcomes, key=bool)  # nothing up to the manifest's link, all of it from there on
    assert outcomes.count(b"killed") >= 3


def race(folder: str, number: int, start: Any, results: Any) -> None:
    content = f"attempt-{number}".encode()
    for round_ in range(ROUNDS):
        start.wait()
        try:
            results.put((round_, content, publish(Path(folder) / str(round_), content)))
        except Exception as error:
            results.put((round_, content, repr(error)))


def test_of_racing_processes_one_wins_and_its_data_lies_there(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(RACERS), context.Queue()
    racers = [context.Process(target=race, args=(str(tmp_path), number, start, results)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=60) for _ in range(RACERS * ROUNDS)]
    for racer in racers:
        racer.join()

    for round_ in range(ROUNDS):
        won = {content: won for number, content, won in outcomes if number == round_}
        assert sorted(won.values(), key=str) == [False, False, True]
        assert won[committed(tmp_path / str(round_)) or b""] is True
        assert names(tmp_path / str(round_)) == ["shard.json", "shard.parquet"]


@pytest.mark.parametrize("pause", range(CALLS))
def test_an_attempt_that_sleeps_at_any_call_while_another_commits_loses_or_wins_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: int
) -> None:
    """The sleeper stops before its n-th call; meanwhile a whole other attempt runs; then it wakes."""
    calls = 0
    sleeper = threading.current_thread()
    outcome: list[bool] = []

    def paused(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal calls
            if threading.current_thread() is sleeper:
                calls += 1
                if calls == pause + 1:
                    other = threading.Thread(target=lambda: outcome.append(publish(tmp_path, b"other")))
                    other.start()
                    other.join()
            return function(*args)

        return call

    for name in ("rename", "link", "fsync", "unlink"):
        monkeypatch.setattr(os, name, paused(getattr(os, name)))

    won = publish(tmp_path, b"sleeper")

    assert won is not outcome[0]
    assert committed(tmp_path) == (b"sleeper" if won else b"other")
    assert names(tmp_path) == ["shard.json", "shard.parquet"]


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


def test_temporary_names_tell_their_owner_and_never_repeat(tmp_path: Path) -> None:
    first, second = temporary_name(tmp_path / "a-b.json"), temporary_name(tmp_path / "a-b.json")

    assert first != second
    assert first.parent == tmp_path
    assert first.name.startswith(f".tmp-{socket.gethostname()}-{os.getpid()}-")
    assert first.name.endswith("-a-b.json.part")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder where no more than a megabyte can be written: a small disk, or a limit where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, previous)


def test_a_full_disk_asks_to_try_again_and_keeps_what_is_committed(full_disk: Path) -> None:
    publish(full_disk / "one", b"first")

    with pytest.raises(RetryableError, match="no space left in ") as caught:
        publish(full_disk / "two", b"x" * (2 << 20))

    assert caught.value.exit_code == 75
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"df -h {full_disk / 'two'}; free some space")
    assert committed(full_disk / "one") == b"first"
    assert names(full_disk / "two") == []


def test_a_shard_that_fills_the_disk_asks_to_try_again(full_disk: Path) -> None:
    noise = [os.urandom(2000).hex() for _ in range(2000)]
    count = len(noise)
    rows = {
        "iteration": [0] * count,
        "shard": [0] * count,
        "split": ["train"] * count,
        "row": list(range(count)),
        "index": [None] * count,
        "group_index": [None] * count,
        "reward": [1.0] * count,
        "reward_parts": [None] * count,
        "reward_status": ["scored"] * count,
        "reward_message": noise,
        "reward_seconds": [0.0] * count,
    }

    def write() -> None:
        with written_file(full_disk / "r.parquet") as path, ShardWriter(path, REWARD) as writer:
            writer.write(rows)

    with pytest.raises(RetryableError, match="no space left") as caught:
        write()

    assert caught.value.exit_code == 75
    assert names(full_disk) == []


def test_another_failure_of_the_disk_stays_what_it_is(tmp_path: Path) -> None:
    def fail() -> None:
        with written_file(tmp_path / "a"):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        fail()


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
