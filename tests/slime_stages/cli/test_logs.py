from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slime_stages.cli import logs
from slime_stages.errors import MissingInputError, UsageError
from slime_stages.slurm.listing import JobInfo
from tests.fakes.commands import FakeCommands
from tests.slime_stages.cli.small_run import SmallRun
from tests.slime_stages.launch.jobs_on_disk import ended, printed, submitted


@pytest.fixture
def busy(small: SmallRun, slurm: FakeCommands) -> SmallRun:
    """Rollout 0/0 is made, 0/1 failed twice, the second time 300 s ago; reward 0/0 runs; all of them have printed."""
    plan = small.plan(0)
    small.rollout(plan, 0)
    first = submitted(small.run, "rollout", 0, "100", 0, 1, ago=900.0)
    second = submitted(small.run, "rollout", 0, "102", 1, ago=600.0)
    third = submitted(small.run, "reward", 0, "101", 0, ago=800.0)
    for attempt, shard, job in ((first, 0, "100_0"), (first, 1, "100_1"), (second, 1, "102"), (third, 0, "101")):
        printed(attempt, shard, [f"{job} began", f"{job} ended"], stdout=[f"{job}.json"])
    ended(first, 0, 0, ago=700.0)
    ended(first, 1, 70, "no memory", ago=700.0)
    ended(second, 1, 65, "bad data", ago=300.0)
    slurm.say(JobInfo(job_id="101", state="RUNNING", started=time.time()))
    return small


def read(small: SmallRun, capfd: pytest.CaptureFixture[str], stage: str | None = None, **options: Any) -> str:
    capfd.readouterr()
    logs.command(stage, run=small.run.root, **options)
    return capfd.readouterr().out


def test_what_failed_last_is_shown_with_its_file(busy: SmallRun, capfd: pytest.CaptureFixture[str]) -> None:
    logs.command(run=busy.run.root)

    out, told = capfd.readouterr()
    assert out == "102 began\n102 ended\n"
    path = busy.run.root / "jobs/000000-rollout/attempt-001/102_0_log.err"
    assert told == f"rollout 0/1, attempt 1, job 102 failed: bad data\n{path}\n\n"


def test_without_failures_it_is_what_runs(busy: SmallRun, capfd: pytest.CaptureFixture[str]) -> None:
    busy.rollout(busy.plan(0), 1)

    assert read(busy, capfd) == "101 began\n101 ended\n"


@pytest.mark.parametrize(
    ("stage", "options", "job"),
    [
        ("reward", {}, "101"),
        ("rollout", {"shard": 0}, "100_0"),
        ("rollout", {"shard": 1}, "102"),
        ("rollout", {"shard": 1, "attempt": 0}, "100_1"),
        ("rollout", {"attempt": 0}, "100_1"),  # its failure, rather than what went well
        (None, {"iteration": 0}, "102"),
    ],
)
def test_a_task_can_be_named(
    busy: SmallRun, capfd: pytest.CaptureFixture[str], stage: str | None, options: dict[str, Any], job: str
) -> None:
    assert read(busy, capfd, stage, **options) == f"{job} began\n{job} ended\n"


def test_stdout_and_the_last_lines_can_be_asked_for(busy: SmallRun, capfd: pytest.CaptureFixture[str]) -> None:
    assert read(busy, capfd, "reward", stdout=True) == "101.json\n"
    assert read(busy, capfd, "reward", lines=1) == "101 ended\n"


def test_a_job_that_has_not_begun_has_no_log(
    small: SmallRun, slurm: FakeCommands, capfd: pytest.CaptureFixture[str]
) -> None:
    small.plan(0)
    submitted(small.run, "train", 0, "100")
    slurm.say(JobInfo(job_id="100", state="PENDING"))

    with pytest.raises(MissingInputError, match=r"100_0_log\.err is not there: the job has not begun"):
        logs.command("train", run=small.run.root)


def test_a_run_without_jobs_has_the_logs_of_its_engines(small: SmallRun, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingInputError, match="there is no log of any stage"):
        logs.command(run=small.run.root)
    for name in ("engine-000000-00000", "engine-000000-00001", "engine-000001-00001"):
        small.run.log_path(name).parent.mkdir(exist_ok=True)
        small.run.log_path(name).write_text(f"{name}\n")

    assert read(small, capfd, "engine", iteration=0, shard=1) == "engine-000000-00001\n"
    assert read(small, capfd, iteration=0, shard=0) == "engine-000000-00000\n"
    with pytest.raises(MissingInputError):
        logs.command("engine", run=small.run.root, iteration=7)


def test_an_unknown_stage_is_refused(small: SmallRun) -> None:
    with pytest.raises(UsageError, match="there is no stage trian"):
        logs.command("trian", run=small.run.root)


def test_following_goes_on_until_the_job_has_ended(
    busy: SmallRun, slurm: FakeCommands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(logs, "QUIET_SECONDS", 0.3)
    path = busy.run.root / "jobs/000000-reward/attempt-000/101_0_log.err"

    def go_on() -> None:
        time.sleep(0.2)
        with path.open("a") as file:
            file.write("101 said more\n")
        slurm.say(JobInfo(job_id="101", state="COMPLETED"))

    thread = threading.Thread(target=go_on)
    thread.start()
    out = read(busy, capfd, "reward", follow=True)
    thread.join()

    assert out == "101 began\n101 ended\n101 said more\n"


def test_the_end_of_a_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", 10)
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))

    assert logs.last_lines(path, 2) == (b"line 98\nline 99\n", True)
    assert logs.last_lines(path, 0)[0] == path.read_bytes()
    assert logs.last_lines(path, 100) == (path.read_bytes(), False)
