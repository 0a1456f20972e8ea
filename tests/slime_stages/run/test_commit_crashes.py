"""Commits through kills, races and full disks: all or nothing, and the data in place is always the manifest's."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.schema import REWARD
from slime_stages.data.shards import ShardWriter
from slime_stages.errors import RetryableError
from slime_stages.run.commit import (
    remove_leftovers,
    written_file,
)
from tests.slime_stages.publishing import committed, names, publish

ROUNDS = 40
RACERS = 3
CALLS = 13
"""Calls of `publish` that change the disk or make it durable: one to write the file, twelve to commit it."""


KILLED_AT = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from slime_stages.run.manifest import code_version
    from tests.slime_stages.publishing import publish

    code_version()  # once, not in every child
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
        "trace": [None] * count,
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
