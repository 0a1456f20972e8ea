"""Outputs of several files and folders, committed by attempts that stop, race and are killed before any call."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from slime_stages.run.claims import commit, end_claimed
from slime_stages.run.commit import remove_leftovers, written_file
from slime_stages.weights.folders import new_temporary_folder, remove_dead_folders

FUNCTIONS = ("rename", "link", "fsync", "unlink", "mkdir", "open", "listdir", "stat")
"""What an attempt does to the disk, or learns from it: before each of them others may come in between."""

Runs = Callable[[str], Path]

STRIDES = pytest.mark.parametrize("stride", [23, pytest.param(2, marks=pytest.mark.slow)])
"""Every how many-th of the pairs of calls is tried."""


def publish(run: Path, name: str) -> bool:
    """One attempt: a data file and a folder that are its own, committed together."""
    place = run / "checkpoints" / "iter_0000002"
    folder = new_temporary_folder(place)
    for file in ("weights", "record.json"):
        (folder / file).write_text(name)
    with written_file(run / "train" / "samples.parquet") as temporary:
        temporary.write_text(name)
    outputs = {run / "train" / "samples.parquet": temporary, place: folder}
    return commit(outputs, run / "train" / "manifest.json", name.encode())


def clear_up(run: Path) -> None:
    """What every attempt does first, for those that died before."""
    end_claimed(run / "train" / "manifest.json")
    remove_dead_folders(run / "checkpoints")
    remove_leftovers(run / "train")


def committed(run: Path) -> str | None:
    """Whose outputs count, after a look that all of them are the same attempt's."""
    manifest = run / "train" / "manifest.json"
    if not manifest.exists():
        return None
    name = manifest.read_text()
    paths = [run / "train" / "samples.parquet", *(run / "checkpoints" / "iter_0000002").iterdir()]
    found = {path.name: path.read_text() for path in paths}
    assert found == dict.fromkeys(("samples.parquet", "weights", "record.json"), name)
    return name


def assert_nothing_else(run: Path) -> None:
    assert sorted(os.listdir(run / "train")) == ["manifest.json", "samples.parquet"]
    assert os.listdir(run / "checkpoints") == ["iter_0000002"]


def leave_stale(run: Path) -> None:
    """What an attempt has left whose manifest is superseded, with a file that later ones do not have."""
    place = run / "checkpoints" / "iter_0000002"
    place.mkdir(parents=True)
    for name in ("weights", "record.json", "optimizer"):
        (place / name).write_text("stale")


def leave_void_claim(run: Path, identity: str = "1-1") -> None:
    """What a killed attempt leaves if its temporary files are deleted before the next one ends its commit."""
    (run / "train").mkdir(exist_ok=True)
    gone = [["samples.parquet", ".tmp-gone-1-0000000000000000-samples.parquet.part", identity]]
    (run / "train" / ".claim-manifest.json").write_text(json.dumps(gone) + "\ndead")


@pytest.fixture(params=["nothing", "stale", "stale-and-void-claim"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Runs:
    """New folders, by what lies in them before."""

    def new(name: str) -> Path:
        run = tmp_path / name
        run.mkdir()
        if "stale" in request.param:
            leave_stale(run)
        if "void-claim" in request.param:
            leave_void_claim(run)
        return run

    return new


class Calls(threading.local):
    """The calls of this thread, and what is to be done before the n-th."""

    count = 0
    number = -1
    action: Callable[[], object] | None = None


CALLS = Calls()


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync  # takes its time, and shows only after a crash of the machine

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            CALLS.count += 1
            if CALLS.count - 1 == CALLS.number and CALLS.action is not None:
                CALLS.action()
            return None if function is fsync else function(*arguments, **named)

        return call

    for name in FUNCTIONS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


class Attempt:
    """A thread that publishes, and stops before its n-th call until it may go on."""

    def __init__(self, run: Path, name: str, *, stops_before: int = -1) -> None:
        """Returns once it has stopped or ended."""
        self.won: bool | None = None
        self._error: BaseException | None = None
        self._stopped, self._may_go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run, name, stops_before), daemon=True)
        self._thread.start()
        self._stopped.wait()

    def end(self) -> Attempt:
        self._may_go_on.set()
        self._thread.join()
        assert self._error is None, self._error
        return self

    def _work(self, run: Path, name: str, stops_before: int) -> None:
        CALLS.number, CALLS.action = stops_before, self._stop
        try:
            self.won = publish(run, name)
        except BaseException as error:
            self._error = error
        self._stopped.set()

    def _stop(self) -> None:
        self._stopped.set()
        self._may_go_on.wait()


def killed_before(number: int, function: Callable[[], object]) -> None:
    """Run in a fork that is killed before its n-th call."""
    child = os.fork()
    if child == 0:
        CALLS.count, CALLS.number, CALLS.action = 0, number, lambda: os.kill(os.getpid(), signal.SIGKILL)
        function()
        os._exit(0)
    os.waitpid(child, 0)


def call_count(run: Path) -> int:
    """How many calls an attempt makes that is alone."""
    before = CALLS.count
    publish(run, "alone")
    return CALLS.count - before


def pairs_of_calls(run: Path, stride: int) -> Iterator[tuple[int, int]]:
    """Every n-th of the pairs of two calls, so that each call is in some."""
    count = call_count(run)
    yield from list(product(range(count), repeat=2))[:: stride + (count % stride == 0)]


def assert_one_won(run: Path, attempts: dict[str, Attempt]) -> None:
    assert [name for name, attempt in attempts.items() if attempt.won] == [committed(run)]
    assert_nothing_else(run)


def test_outputs_and_manifest_are_one_attempts_and_a_loser_leaves_nothing(runs: Runs) -> None:
    run = runs("run")

    assert publish(run, "first")
    assert not publish(run, "second")

    assert committed(run) == "first"
    assert_nothing_else(run)


def test_a_claim_whose_output_was_deleted_is_void_though_another_has_its_inode_by_now(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "samples.parquet").write_text("another's")
    leave_void_claim(tmp_path, f"{(tmp_path / 'train' / 'samples.parquet').stat().st_ino}-1")

    assert publish(tmp_path, "next")

    assert committed(tmp_path) == "next"
    assert_nothing_else(tmp_path)


def test_an_attempt_that_stops_anywhere_while_another_commits_loses_or_wins_whole(runs: Runs) -> None:
    winners = set()
    for number in range(call_count(runs("calls"))):
        run = runs(str(number))

        first = Attempt(run, "first", stops_before=number)
        second = Attempt(run, "second").end()
        first.end()

        assert_one_won(run, {"first": first, "second": second})
        winners.add(first.won)
    assert winners == {False, True}


@STRIDES
def test_of_two_attempts_that_take_turns_one_wins_whole(runs: Runs, stride: int) -> None:
    for first_stop, second_stop in pairs_of_calls(runs("calls"), stride):
        run = runs(f"{first_stop}-{second_stop}")

        first = Attempt(run, "first", stops_before=first_stop)
        second = Attempt(run, "second", stops_before=second_stop)
        first.end()
        second.end()

        assert_one_won(run, {"first": first, "second": second})


@STRIDES
def test_of_two_attempts_that_stop_and_one_that_does_not_one_wins_whole(runs: Runs, stride: int) -> None:
    for first_stop, second_stop in pairs_of_calls(runs("calls"), stride):
        run = runs(f"{first_stop}-{second_stop}")

        first = Attempt(run, "first", stops_before=first_stop)
        second = Attempt(run, "second", stops_before=second_stop)
        third = Attempt(run, "third").end()
        second.end()
        first.end()

        assert_one_won(run, {"first": first, "second": second, "third": third})


def test_a_kill_anywhere_leaves_all_or_nothing_and_the_next_attempt_completes(runs: Runs) -> None:
    outcomes = []
    for number in range(call_count(runs("calls"))):
        run = runs(str(number))

        killed_before(number, partial(publish, run, "killed"))
        outcomes.append(committed(run))
        clear_up(run)
        won = publish(run, "next")

        assert committed(run) == ("next" if won else "killed")
        clear_up(run)
        assert_nothing_else(run)
    assert set(outcomes) == {None, "killed"}
    assert outcomes == sorted(outcomes, key=bool)


@STRIDES
@pytest.mark.slow
def test_a_kill_while_another_attempt_is_stopped_ends_well(runs: Runs, stride: int) -> None:
    for stop, kill in pairs_of_calls(runs("calls"), stride):
        run = runs(f"{stop}-{kill}")

        first = Attempt(run, "first", stops_before=stop)
        killed_before(kill, partial(publish, run, "killed"))
        clear_up(run)
        third = Attempt(run, "third").end()
        first.end()

        winners = [name for name, attempt in {"first": first, "third": third}.items() if attempt.won]
        assert (winners or ["killed"]) == [committed(run)]
        clear_up(run)
        assert_nothing_else(run)
