"""The journal: finished groups survive a kill at any byte, each once, and only for the same work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import slime_stages.run.journal
from slime_stages.run.journal import Journal
from slime_stages.sample import Sample, Status


def journal(folder: Path, fingerprint: str = "policy-3") -> Journal:
    return Journal(folder, iteration=2, shard=1, fingerprint=fingerprint)


def group(number: int | None, first_index: int, status: Status = Status.COMPLETED) -> list[Sample]:
    return [
        Sample(
            group_index=number,
            index=first_index + i,
            tokens=[1, 2, 3],
            response_length=2,
            loss_mask=[1, 0],
            rollout_log_probs=[-0.5, 0.0],
            response="two",
            status=status,
        )
        for i in range(2)
    ]


def indices(groups: list[list[Sample]]) -> list[list[int | None]]:
    return [[sample.index for sample in samples] for samples in groups]


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    groups = [group(0, 0), group(1, 2, Status.TRUNCATED), group(2, 4, Status.FAILED)]
    with journal(tmp_path) as writing:
        for finished in groups:
            writing.append(finished)

    found = journal(tmp_path).finished_groups()

    assert [[vars(sample) for sample in samples] for samples in found] == [
        [vars(sample) for sample in samples] for samples in groups
    ]


def test_a_journal_without_groups_or_without_a_folder_has_none(tmp_path: Path) -> None:
    with journal(tmp_path / "begun"):
        pass

    assert journal(tmp_path / "begun").finished_groups() == []
    assert journal(tmp_path / "never").finished_groups() == []


def test_several_attempts_add_up_and_a_group_counts_once(tmp_path: Path) -> None:
    for groups in ([group(0, 0), group(1, 2)], [group(1, 2), group(2, 4)]):
        with journal(tmp_path) as writing:
            for finished in groups:
                writing.append(finished)

    found = journal(tmp_path).finished_groups()

    assert sorted(indices(found)) == [[0, 1], [2, 3], [4, 5]]


def test_groups_without_a_number_are_told_apart_by_their_samples(tmp_path: Path) -> None:
    with journal(tmp_path) as writing:
        writing.append(group(None, 0))
        writing.append(group(None, 2))

    assert indices(journal(tmp_path).finished_groups()) == [[0, 1], [2, 3]]


def test_a_journal_of_other_work_is_not_taken_up(tmp_path: Path) -> None:
    with journal(tmp_path) as writing:
        writing.append(group(0, 0))

    assert journal(tmp_path, fingerprint="policy-4").finished_groups() == []


def test_a_torn_tail_is_left_unread_wherever_it_was_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journal(tmp_path / "whole") as writing:
        writing.append(group(0, 0))
        [path] = (tmp_path / "whole").iterdir()
        first_end = path.stat().st_size
        writing.append(group(1, 2, Status.TRUNCATED))
        second_end = path.stat().st_size
    data = path.read_bytes()
    torn = tmp_path / "torn" / "torn.arrows"
    torn.parent.mkdir()
    # thousands of readings: of each sample only its index
    monkeypatch.setattr(
        slime_stages.run.journal,
        "samples_of",
        lambda table: [Sample(index=index) for index in table["index"].to_pylist()],
    )

    for length in range(first_end, second_end + 1):
        torn.write_bytes(data[:length])
        found = indices(journal(torn.parent).finished_groups())
        assert found == ([[0, 1], [2, 3]] if length == second_end else [[0, 1]]), length


def test_a_tail_that_a_crash_left_as_zeros_is_left_unread(tmp_path: Path) -> None:
    with journal(tmp_path) as writing:
        writing.append(group(0, 0))
        [path] = tmp_path.iterdir()
        whole = path.stat().st_size
        writing.append(group(1, 2))
        size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:whole] + bytes(size - whole))

    assert indices(journal(tmp_path).finished_groups()) == [[0, 1]]


def test_a_group_survives_a_kill_right_after_it_was_appended(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from tests.slime_stages.run.test_journal import group, journal

        with journal(Path(sys.argv[1])) as writing:
            writing.append(group(0, 0))
            writing.append(group(1, 2))
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    folder = tmp_path / "journal"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}

    killed = subprocess.run([sys.executable, "-c", script, str(folder)], env=environment, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert indices(journal(folder).finished_groups()) == [[0, 1], [2, 3]]


def test_a_discarded_journal_is_gone_with_all_its_attempts(tmp_path: Path) -> None:
    for _ in range(2):
        with journal(tmp_path / "journal") as writing:
            writing.append(group(0, 0))

    journal(tmp_path / "journal").discard()
    journal(tmp_path / "journal").discard()

    assert not (tmp_path / "journal").exists()


def test_the_seconds_of_attempts_go_from_their_beginning_to_their_last_sign_and_count_once(tmp_path: Path) -> None:
    now = time.time()
    for last in (10, 14, 30):  # all three began now, as far as the clock can tell
        with journal(tmp_path) as attempt:
            attempt.begin()
            attempt.append(group(last, last))
        [path] = [path for path in tmp_path.glob("*.arrows") if path.stat().st_mtime < now + 5]
        os.utime(path, (now + last, now + last))
    with journal(tmp_path):
        pass

    assert journal(tmp_path).seconds() == pytest.approx(30, abs=1)
    assert len(journal(tmp_path).entries()) == 3
    assert journal(tmp_path, "another policy").seconds() == 0


async def test_a_slow_disk_holds_nobody_up_and_the_journal_closes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr("slime_stages.run.journal.os.fsync", lambda descriptor: disk.wait(30))
    with journal(tmp_path) as writing:
        first, given_up, last = (
            asyncio.create_task(writing.append_beside(group(number, 2 * number))) for number in range(3)
        )
        await asyncio.sleep(0)
        writing.note(group(0, 0), {"keep": True})
        given_up.cancel()
        await asyncio.sleep(0)
        assert not first.done()
        disk.set()

    await asyncio.gather(first, last)
    assert indices(journal(tmp_path).finished_groups()) == [[0, 1], [4, 5]]


async def test_the_time_that_a_group_took_to_be_written_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime_stages.run.journal.os.fsync", lambda descriptor: time.sleep(0.05))
    with journal(tmp_path) as writing:
        began = time.monotonic()
        seconds = await asyncio.gather(*(writing.append_beside(group(number, 2 * number)) for number in range(3)))
        elapsed = time.monotonic() - began

    assert min(seconds) >= 0.05
    assert sum(seconds) <= elapsed
