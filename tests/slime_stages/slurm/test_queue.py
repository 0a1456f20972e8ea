from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slime_stages.slurm import commands
from slime_stages.slurm.listing import SACCT_COLUMNS, SEPARATOR, SQUEUE_COLUMNS, expand_tasks, parse_sacct, parse_squeue
from slime_stages.slurm.nodes import expand_nodes
from slime_stages.slurm.queue import Queue, SchedulerDown, query, sacct_command, scheduler_limits, squeue_command

SQUEUE = """\
16|CANCELLED|0|0|1796003384|1796003384|1796003384||DependencyNeverSatisfied
12|CANCELLED|15|0|1796003356|1796003357|1796003358|node1|None
3|COMPLETED|0|0|1796003356|1796003356|1796003356|node1|None
7_0|COMPLETED|0|0|1796003356|1796003356|1796003356|node3|None
4|FAILED|768|0|1796003356|1796003356|1796003356|node1|NonZeroExitCode
5|FAILED|9|0|1796003356|1796003356|1796003356|node2|JobLaunchFailure
21|OUT_OF_MEMORY|253|0|1796003382|1796003383|1796003384|node1|OutOfMemory
15|FAILED|35072|0|1796003382|1796003383|1796003384|node4|NonZeroExitCode
7_2|PENDING|0|1|1796003382|N/A|N/A||JobArrayTaskLimit
11|PENDING|0|0|1796003356|N/A|N/A||Dependency
13_0|PENDING|0|0|1796003356|N/A|N/A||JobHeldUser
13_12|PENDING|0|0|1796003356|N/A|N/A||JobHeldUser
6|RUNNING|0|2|1796003382|1796003388|NONE|node1|None
7_3|RUNNING|0|0|1796003356|1796003383|NONE|node1|None
7_1|RUNNING|0|0|1796003356|1796003356|1827539356|node3|None
"""
"""As SLURM 22.05 printed it, but for the ids, which were longer, and the bars, which were spaces up to the width."""

SACCT = """\
3|COMPLETED|0:0|1796003356|1796003356|1796003356|node1|None
3.batch|COMPLETED|0:0|1796003356|1796003356|1796003356|node1|
4|FAILED|3:0|1796003356|1796003356|1796003356|node1|None
4.batch|FAILED|3:0|1796003356|1796003356|1796003356|node1|
5|FAILED|0:9|1796003356|1796003356|1796003356|node2|None
5.batch|CANCELLED|0:9|1796003356|1796003356|1796003356|node2|
6|REQUEUED|0:0|1796003356|1796003356|1796003358|node2|None
6.batch|CANCELLED|0:15|1796003356|1796003356|1796003358|node2|
12|CANCELLED by 0|0:0|1796003356|1796003357|1796003358|node1|None
12.batch|CANCELLED|0:15|1796003357|1796003357|1796003358|node1|
7_0|COMPLETED|0:0|1796003356|1796003356|1796003356|node3|None
7_1|RUNNING|0:0|1796003356|1796003356|Unknown|node3|None
7_2|NODE_FAIL|0:0|1796003356|1796003357|1796003382|node2|JobArrayTaskLimit
7_2.batch|CANCELLED||1796003357|1796003357|1796003382|node2|
6|NODE_FAIL|0:0|1796003358|1796003364|1796003382|node2|BeginTime
6.batch|CANCELLED||1796003364|1796003364|1796003382|node2|
6|RUNNING|0:0|1796003382|1796003388|Unknown|node1|BeginTime
13_[0-3,12%3]|PENDING|0:0|1796003356|Unknown|Unknown|None assigned|None
20|FAILED|0:125|1796003400|1796003400|1796003401|node1|None
20.batch|FAILED|0:125|1796003400|1796003400|1796003401|node1|
20.0|OUT_OF_MEMORY|0:125|1796003400|1796003400|1796003401|node1|
"""


def squeue_text(*lines: str) -> str:
    widths = SQUEUE_COLUMNS.values()
    chosen = [line for line in SQUEUE.splitlines() if not lines or line.split("|")[0] in lines]
    rows = (zip(line.split("|"), widths, strict=True) for line in chosen)
    return "".join("".join(cell[:width].ljust(width) for cell, width in row) + "\n" for row in rows)


def sacct_text(*bases: str) -> str:
    lines = [line for line in SACCT.splitlines() if not bases or line.split("|")[0].split(".")[0] in bases]
    return "\n".join(lines).replace("|", SEPARATOR) + "\n"


class Commands:
    """SLURM's commands by name, each a script that prints a text and counts its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(self, name: str, text: str = "", *, error: str = "", exit_code: int = 0, after: int = 0) -> None:
        """From call `after` on; with `after` above 0 the earlier calls find no controller."""
        (self.folder / f"{name}.text").write_text(text)
        (self.folder / f"{name}.error").write_text(error)
        away = f"{name}: error: Unable to contact slurm controller (connect failure)"
        script = f"""#!/bin/bash
cd {self.folder}
echo "$*" >> {name}.calls
env > {name}.environment
if (($(wc -l < {name}.calls) <= {after})); then echo '{away}' >&2; exit 1; fi
cat {name}.error >&2
cat {name}.text
exit {exit_code}
"""
        path = self.folder / name
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, name: str) -> dict[str, str]:
        lines = (self.folder / f"{name}.environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def slurm_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return Commands(tmp_path)


def test_a_completed_job_has_its_times_and_its_node() -> None:
    job = parse_squeue(squeue_text())["3"]

    assert (job.state, job.exit_code, job.signal, job.nodes, job.reason) == ("COMPLETED", 0, 0, "node1", "")
    assert (job.submitted, job.started, job.ended) == (1796003356.0, 1796003356.0, 1796003356.0)
    assert not job.is_live


@pytest.mark.parametrize(
    ("job_id", "status"), [("4", (3, 0)), ("5", (0, 9)), ("15", (137, 0)), ("12", (0, 15)), ("21", (0, 125))]
)
def test_exit_code_and_signal_are_told_apart(job_id: str, status: tuple[int, int]) -> None:
    job = parse_squeue(squeue_text())[job_id]

    assert (job.exit_code, job.signal) == status


def test_times_that_are_only_foreseen_are_left_out() -> None:
    jobs = parse_squeue(squeue_text())

    assert (jobs["7_1"].started, jobs["7_1"].ended) == (1796003356.0, None)
    assert (jobs["11"].started, jobs["11"].ended, jobs["11"].reason) == (None, None, "Dependency")
    assert jobs["6"].restarts == 2


def test_a_cancelled_job_is_so_whoever_cancelled_it_and_however_short_the_column() -> None:
    line = SEPARATOR.join(["1", "CANCELLED+", "0:0", "1", "2", "3", "node1", ""])

    assert parse_sacct(line)["1"].state == "CANCELLED"
    assert parse_sacct(sacct_text())["12"].state == "CANCELLED"


def test_the_tasks_of_an_array_that_was_cancelled_before_it_began_are_found_under_the_arrays_id() -> None:
    queue = Queue(parse_squeue(squeue_text("16", "7_0")))

    assert queue.get("16_1") == queue.get("16")
    assert queue.get("7_5") is None


def test_of_a_requeued_job_the_latest_run_counts_and_earlier_ones_name_failed_nodes() -> None:
    job = parse_sacct(sacct_text())["6"]

    assert (job.state, job.nodes, job.restarts, job.failed_nodes) == ("RUNNING", "node1", 2, ("node2",))


def test_a_job_whose_step_ran_out_of_memory_did_so_itself() -> None:
    job = parse_sacct(sacct_text())["20"]

    assert (job.state, job.signal) == ("OUT_OF_MEMORY", 125)


def test_tasks_that_still_wait_are_listed_one_by_one() -> None:
    jobs = parse_sacct(sacct_text())

    assert [job_id for job_id in jobs if job_id.startswith("13")] == ["13_0", "13_1", "13_2", "13_3", "13_12"]
    assert list(expand_tasks("2_[4-7%2]")) == ["2_4", "2_5", "2_6", "2_7"]
    assert list(expand_tasks("2_[0-6:3,9]")) == ["2_0", "2_3", "2_6", "2_9"]
    assert list(expand_tasks("2_4")) == ["2_4"]
    assert list(expand_tasks("2")) == ["2"]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node[1-2,4],login", ["node1", "node2", "node4", "login"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)
def test_lists_of_nodes_are_spelled_out(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


def test_one_command_is_enough_while_the_controller_knows_all(slurm_commands: Commands) -> None:
    slurm_commands.say("squeue", squeue_text("3", "7_0", "7_1", "7_3", "11"))
    slurm_commands.say("sacct", exit_code=1)

    queue = query("run", ["3", "7_0", "7_1", "7_3", "11"], since=0)

    assert [job.job_id for job in queue.live()] == ["11", "7_3", "7_1"]
    assert queue.has_accounting
    assert (len(slurm_commands.calls("squeue")), slurm_commands.calls("sacct")) == (1, [])


def test_accounting_is_asked_once_about_what_the_controller_does_not_explain(slurm_commands: Commands) -> None:
    slurm_commands.say("squeue", squeue_text("7_0", "7_1", "7_2", "6", "4"))
    slurm_commands.say("sacct", sacct_text("3", "4", "6", "7_0", "7_1", "7_2", "20"))

    queue = query("run", ["3", "4", "6", "7_0", "7_1", "7_2", "20", "99"], since=1796003356)

    words = slurm_commands.calls("sacct")
    assert len(words) == 1
    assert "--jobs=20,3,4,6,7,99 " in words[0]
    assert "--starttime=" in words[0]
    states = {job_id: job.state for job_id, job in queue.jobs.items()}
    wanted = "3 COMPLETED, 4 FAILED, 6 RUNNING, 7_0 COMPLETED, 7_1 RUNNING, 7_2 PENDING, 20 OUT_OF_MEMORY"
    assert sorted(states.items()) == sorted(tuple(pair.split()) for pair in wanted.split(", "))
    assert queue.jobs["6"].failed_nodes == ("node2",)
    assert queue.jobs["7_2"].failed_nodes == ("node2",)
    assert queue.get("99") is None


def test_a_job_that_only_accounting_believes_to_be_running_is_unknown(slurm_commands: Commands) -> None:
    slurm_commands.say("squeue", "")
    slurm_commands.say("sacct", sacct_text("6"))

    assert query("run", ["6"], since=0).jobs == {}


def test_without_accounting_the_controller_alone_is_believed(slurm_commands: Commands) -> None:
    slurm_commands.say("squeue", squeue_text("3", "4"))
    slurm_commands.say("sacct", error="Slurm accounting storage is disabled\n", exit_code=1)

    queue = query("run", ["3", "4", "5"], since=0)

    assert not queue.has_accounting
    assert (queue.jobs["4"].state, queue.jobs["4"].exit_code) == ("FAILED", 3)
    assert queue.get("5") is None


def test_ten_thousand_jobs_are_asked_for_by_their_name() -> None:
    few, many = (sacct_command("run", map(str, range(10_000_000, 10_000_000 + n)), 0.0) for n in (10, 20_000))

    assert "--jobs=10000000,10000001," in " ".join(few)
    assert "--name=run" in many
    assert max(map(len, many)) < 100_000


def test_what_a_user_sets_for_reading_does_not_reach_the_commands(
    slurm_commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SQUEUE_STATES", "SACCT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "relative")
    slurm_commands.say("squeue", squeue_text("3"))

    query("run", ["3"], since=0)

    environment = slurm_commands.environment("squeue")
    assert not [name for name in environment if name.startswith(("SQUEUE_", "SACCT_"))]
    assert environment["SLURM_TIME_FORMAT"] == "%s"
    assert environment["SLURM_CONF"] == str(slurm_commands.folder / "slurm.conf")


def test_a_controller_that_restarts_is_waited_for(
    slurm_commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "FIRST_PAUSE_SECONDS", 0.01)
    slurm_commands.say("squeue", squeue_text("3"), after=3)

    queue = query("run", ["3"], since=0)

    assert queue.jobs["3"].state == "COMPLETED"
    assert len(slurm_commands.calls("squeue")) == 4
    assert capsys.readouterr().err.count("waiting") == 1


def test_a_controller_that_stays_away_is_an_error_to_try_again(
    slurm_commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(commands, "FIRST_PAUSE_SECONDS", 0.02)
    slurm_commands.say("squeue", after=1_000)

    with pytest.raises(SchedulerDown, match="Unable to contact slurm controller") as caught:
        query("run", ["3"], since=0)
    assert caught.value.exit_code == 75


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(commands.SchedulerMissing, match="there is no `squeue` on this machine"):
        query("run", ["3"], since=0)


def test_the_limits_of_the_cluster_are_asked_for_once(slurm_commands: Commands) -> None:
    text = """Configuration data as of 1796003400
AccountingStorageType   = accounting_storage/none
ClusterName             = tests
JobRequeue              = 1
KillWait                = 2 sec
MaxArraySize            = 1001
MaxJobCount             = 10000
MinJobAge               = 300 sec
SLURM_VERSION           = 22.05.8
"""
    slurm_commands.say("scontrol", text)

    limits = scheduler_limits()

    assert scheduler_limits() is limits
    assert (limits.version, limits.max_array_size, limits.min_job_age_seconds) == ("22.05.8", 1001, 300.0)
    assert not limits.has_accounting
    assert len(slurm_commands.calls("scontrol")) == 1


def test_columns_are_asked_for_with_the_widths_by_which_they_are_read() -> None:
    assert squeue_command("run")[-1].startswith("--Format=JobArrayID:40,State:24,exit_code:12,")
    assert f"--format={','.join(SACCT_COLUMNS)}" in sacct_command("run", ["1"], 0.0)
