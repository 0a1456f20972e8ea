"""What `status` shows of jobs, and how it watches."""

from __future__ import annotations

import json
import re
import time

import pytest

from slime_stages.cli import status, watch
from slime_stages.cli.main import main
from slime_stages.errors import DataError
from slime_stages.launch import summaries
from slime_stages.launch.chain_state import Chain, stop_chain, write_chain
from slime_stages.launch.run_overview import run_overview
from slime_stages.slurm.listing import JobInfo
from tests.fakes.commands import FakeCommands
from tests.slime_stages.cli.small_run import SmallRun
from tests.slime_stages.cli.test_status import cells
from tests.slime_stages.launch.jobs_on_disk import ended, submitted


@pytest.fixture
def busy(small: SmallRun, slurm: FakeCommands) -> SmallRun:
    """Of 2 rollouts of iteration 0 one is there and one has failed; the rewards wait."""
    plan = small.plan(0)
    small.rollout(plan, 0)
    attempt = submitted(small.run, "rollout", 0, "100", 0, 1)
    ended(attempt, 0, 0)
    ended(attempt, 1, 65, "prompts.jsonl has no line 7")
    submitted(small.run, "reward", 0, "101", 0, 1)
    write_chain(small.run, Chain(target=3, sbatch_folder="/sbatch"))
    slurm.say(
        JobInfo(job_id="100_1", state="FAILED", exit_code=65),
        JobInfo(job_id="101_0", state="RUNNING", nodes="node7", started=time.time()),
        JobInfo(job_id="101_1", state="PENDING", reason="Resources"),
    )
    return small


def shown(small: SmallRun, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["status", "--run", str(small.run.root), *words]) == 0
    return capsys.readouterr().out


def test_cells_tell_what_jobs_do(busy: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(busy, capsys)

    assert cells(text, "0")[1:5] == ["1/2, 1 failed", "0/2, 1 running, 1 queued", "missing", "missing"]
    assert "the chain of jobs goes up to iteration 2\njobs: 1 running, 1 queued (1 Resources)\n" in text
    assert "\nrollout 0/1 failed: prompts.jsonl has no line 7 (job 100_1)\n  hint: type this\n" in text
    assert text.endswith(f"next: slime-stages status --run {busy.run.root} --watch\n")


def test_a_chain_that_has_stopped_comes_first(
    busy: SmallRun, slurm: FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_chain(busy.run, "rollout 0/1: prompts.jsonl has no line 7", "repair prompts.jsonl")
    slurm.say()

    lines = shown(busy, capsys).splitlines()

    assert lines[1:3] == [
        "the chain of jobs has stopped: rollout 0/1: prompts.jsonl has no line 7",
        "  hint: repair prompts.jsonl",
    ]
    assert lines[-1] == "next: repair prompts.jsonl"


def test_one_iteration_shows_the_job_of_each_shard(busy: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(busy, capsys, "--iter", "0")

    rows = [dict(zip(cells(text, "shard"), cells(text, str(shard)), strict=True)) for shard in (0, 1)]
    assert [(row["rollout"], row["reward"]) for row in rows] == [("committed", "running"), ("failed", "queued")]
    assert re.fullmatch(r"101_0 runs on node7, \d+ s", rows[0]["job"])
    assert rows[1]["job"] == "100_1 prompts.jsonl has no line 7"


def test_shards_with_the_same_trouble_are_one_line(
    small: SmallRun, slurm: FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    small.plan(0)
    attempt = submitted(small.run, "rollout", 0, "100", 0, 1)
    for shard in (0, 1):
        ended(attempt, shard, 65, "bad data")

    assert "\nrollout 0/0-1 failed: bad data (job 100_1)\n" in shown(small, capsys)


def test_json_has_the_jobs_and_what_it_had(busy: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(busy, capsys, "--json"))

    [part] = found["iterations"]
    assert part["stages"]["rollout"]["counts"] == {"corrupt": 0, "stale": 0, "missing": 1, "committed": 1}
    assert part["stages"]["rollout"]["activity"] == {"failed": 1, "committed": 1}
    assert found["jobs"] == {"running": 1, "queued": {"Resources": 1}, "silence": None}
    assert found["chain"] == {"target": 3, "lookahead": 2, "stopped": None, "advice": None, "is_driven": False}
    assert [(task["title"], task["activity"], task["job"]) for task in part["tasks"]] == [
        ("rollout 0/1", "failed", "100_1"),
        ("reward 0/0", "running", "101_0"),
        ("reward 0/1", "queued", "101_1"),
    ]


def test_folded_iterations_are_said_to_be_committed_or_which_are_not(
    small: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SHOWN", 1)
    monkeypatch.setattr(summaries, "SETTLED_SECONDS", 0.0)
    for iteration in range(3):
        small.complete(iteration)

    assert "(2 earlier iterations, all committed; --all shows them)\n" in shown(small, capsys)

    small.run.shard_path("reward", 1, 0, 2).unlink()
    text = shown(small, capsys)
    assert "(2 earlier iterations; --all shows them)\nnot complete among them: 1\n" in text
    assert "reward 1/0 is corrupt" in text


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--watch"], ["--watch", "15"]),
        (["--watch", "3"], ["--watch", "3"]),
        (["--watch", "0.5", "--all"], ["--watch", "0.5", "--all"]),
        (["--watch", "--run", "x"], ["--watch", "15", "--run", "x"]),
        (["--run", "x"], ["--run", "x"]),
    ],
)
def test_watch_may_have_seconds(typed: list[str], read: list[str]) -> None:
    assert status.with_watch_seconds(typed) == read


class Naps:
    """Instead of sleeping; each nap does the next thing, and the last one is Ctrl-C."""

    def __init__(self, *things: object) -> None:
        self._things = list(things)
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if not self._things:
            raise KeyboardInterrupt
        thing = self._things.pop(0)
        assert callable(thing)
        thing()


def test_who_watches_sees_it_again_when_it_has_changed(
    busy: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, slurm: FakeCommands
) -> None:
    plan = busy.plan(0)
    naps = Naps(lambda: None, lambda: busy.rollout(plan, 1))
    monkeypatch.setattr(watch, "sleep", naps)

    text = shown(busy, capsys, "--watch", "7")

    assert naps.seconds == [7.0, 7.0, 7.0]
    assert len(re.findall(r"^\[\d\d:\d\d:\d\d\]$", text, re.MULTILINE)) == 2
    assert text.count("next: ") == 2
    assert len(slurm.calls("squeue")) == 3


def test_on_a_terminal_it_is_shown_in_place(
    busy: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(watch, "sleep", Naps())

    text = shown(busy, capsys, "--watch")

    assert "\x1b[" in text
    assert "1/2, 1 failed" in text
    assert "Ctrl-C ends" in text


def test_on_a_low_terminal_fewer_iterations_are_shown_and_still_what_is_next(
    busy: SmallRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for iteration in range(1, 30):
        busy.plan(iteration)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(watch, "sleep", Naps())

    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(busy, capsys, "--watch")).splitlines()

    assert len([line for line in lines if re.match(r"\s+\d+  .* missing", line)]) in range(5, 14)
    assert any(line.startswith("next: ") for line in lines)


def test_following_ends_with_the_chain(
    busy: SmallRun, slurm: FakeCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        stop_chain(busy.run, "rollout 0/1: bad", "repair it")

    naps = Naps(stop, slurm.say)
    monkeypatch.setattr(watch, "sleep", naps)

    with pytest.raises(DataError, match="the chain of jobs has stopped: rollout 0/1: bad"):
        status.watch(busy.run)
    assert len(naps.seconds) == 2  # the job that ran after the stop was waited for


def test_following_ends_when_no_job_is_left(
    busy: SmallRun, slurm: FakeCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.say()
    naps = Naps(*[lambda: None] * 10)
    monkeypatch.setattr(watch, "sleep", naps)

    with pytest.raises(DataError, match=r"no job of .* is left, and its chain is not at iteration 2 yet"):
        status.watch(busy.run)
    assert len(naps.seconds) == status.IDLE_LOOKS - 1


def test_following_ends_when_all_iterations_are_there(
    small: SmallRun, slurm: FakeCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small.complete(0)
    submitted(small.run, "sync", 0, "100")
    write_chain(small.run, Chain(target=1, sbatch_folder="/sbatch"))
    monkeypatch.setattr(watch, "sleep", Naps())

    status.watch(small.run)

    assert status.is_reached(run_overview(small.run))
