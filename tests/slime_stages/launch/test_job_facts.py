from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slime_stages.launch.chain_state import Chain, stop_chain, write_chain
from slime_stages.launch.overview import TaskFact
from slime_stages.launch.run_overview import RunOverview, run_overview
from slime_stages.lineage import journal_of
from slime_stages.run.manifest import read_manifest
from slime_stages.slurm import commands
from slime_stages.slurm.listing import JobInfo
from tests.fakes.commands import FakeCommands
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples
from tests.slime_stages.launch.jobs_on_disk import ended, submitted


def activity(overview: RunOverview, stage: str) -> dict[str, int]:
    return overview.iterations[0].stages[stage].activity


def told(overview: RunOverview) -> list[tuple[str, str, str]]:
    return [(task.title, task.activity, task.reason) for task in overview.tasks]


def only(overview: RunOverview) -> TaskFact:
    [task] = overview.tasks
    return task


def test_a_run_without_jobs_does_not_ask_the_scheduler(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)

    overview = run_overview(small.run)

    assert (overview.tasks, overview.jobs.silence, slurm.calls("squeue")) == ([], None, [])


def test_what_runs_and_what_waits_is_told_by_one_question(small: SmallRun, slurm: FakeCommands) -> None:
    plan = small.plan(0)
    small.rollout(plan, 0)
    submitted(small.run, "rollout", 0, "100", 0, 1)
    submitted(small.run, "reward", 0, "101", 0, 1)
    submitted(small.run, "train", 0, "102")
    slurm.say(
        JobInfo(job_id="100_0", state="COMPLETED"),
        JobInfo(job_id="100_1", state="RUNNING", nodes="node7", started=1000.0),
        JobInfo(job_id="101_0", state="PENDING", reason="Dependency"),
        JobInfo(job_id="101_1", state="PENDING", reason="Dependency"),
        JobInfo(job_id="102", state="PENDING", reason="Priority"),
        JobInfo(job_id="103", state="PENDING", reason="Dependency"),  # the chain's own
    )

    overview = run_overview(small.run)

    assert activity(overview, "rollout") == {"running": 1, "committed": 1}
    assert activity(overview, "reward") == {"queued": 2}
    assert activity(overview, "train") == {"queued": 1}
    assert activity(overview, "sync") == {"missing": 1}
    assert (overview.jobs.running, overview.jobs.queued) == (1, {"Dependency": 3, "Priority": 1})
    task = overview.tasks[0]
    assert (task.title, task.job, task.reason, task.since) == ("rollout 0/1", "100_1", "runs on node7", 1000.0)
    assert task.log == str(small.run.root / "jobs/000000-rollout/attempt-000/100_1_0_log.err")
    assert overview.next_command == f"slime-stages status --run {small.run.root} --watch"
    assert len(slurm.calls("squeue")) == 1
    assert overview.iterations[0].stages["rollout"].counts["missing"] == 1


def test_a_task_that_failed_says_why(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    attempt = submitted(small.run, "rollout", 0, "100", 0, 1)
    ended(attempt, 1, 65, "the prompt file has no line 7")
    slurm.say(JobInfo(job_id="100_0", state="RUNNING"), JobInfo(job_id="100_1", state="FAILED", exit_code=65))

    overview = run_overview(small.run)

    assert activity(overview, "rollout") == {"failed": 1, "running": 1}
    assert told(overview)[1] == ("rollout 0/1", "failed", "the prompt file has no line 7")
    assert overview.tasks[1].advice == "type this"


def test_a_task_that_was_killed_has_the_schedulers_reason(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)
    slurm.say(JobInfo(job_id="100", state="OUT_OF_MEMORY", ended=5000.0))

    task = only(run_overview(small.run))

    assert (task.activity, task.reason, task.since) == ("failed", "ran out of memory", 5000.0)
    assert task.advice is not None


def test_a_time_limit_is_no_failure_for_a_rollout_that_got_further(
    small: SmallRun, slurm: FakeCommands, tmp_path: Path
) -> None:
    plan = small.plan(0)
    attempt = submitted(small.run, "rollout", 0, "100", 0)
    header = '#!/bin/bash\n#SBATCH --time=60\nexec python -m stages.rollout "$@"\n'
    (tmp_path / "rollout.sbatch").write_text(header)
    write_chain(small.run, Chain(target=1, sbatch_folder=str(tmp_path)))
    slurm.say(JobInfo(job_id="100", state="TIMEOUT", ended=time.time() + 60))
    assert only(run_overview(small.run)).activity == "failed"

    call = attempt.call(small.run, 0)
    with journal_of(small.run, plan, small.config, call) as journal:
        journal.append(made_up_samples(plan, 0))

    task = only(run_overview(small.run))
    assert (task.activity, task.advice) == ("missing", None)
    assert "it had got further than before" in task.reason


def test_a_task_that_was_preempted_is_missing_and_says_so(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)
    slurm.say(JobInfo(job_id="100", state="PREEMPTED"))

    overview = run_overview(small.run)

    assert told(overview) == [("rollout 0/0", "missing", "was preempted")]
    assert activity(overview, "rollout") == {"missing": 2}


def test_the_last_submission_counts(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    ended(submitted(small.run, "rollout", 0, "100", 0, 1), 1, 70, "no")
    submitted(small.run, "rollout", 0, "105", 1)
    slurm.say(JobInfo(job_id="105", state="PENDING", reason="Resources"))

    overview = run_overview(small.run)

    task = next(task for task in overview.tasks if task.shard == 1)
    assert (task.activity, task.job, task.attempt) == ("queued", "105", 1)
    assert task.reason == "waits in the queue (Resources)"


def test_a_job_that_cannot_start_has_advice(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)
    slurm.say(JobInfo(job_id="100", state="PENDING", reason="PartitionTimeLimit"))

    task = only(run_overview(small.run))

    assert task.activity == "queued"
    assert "PartitionTimeLimit" in task.reason
    assert task.advice is not None


def test_without_a_scheduler_the_disk_is_believed(
    small: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    small.plan(0)
    attempt = submitted(small.run, "rollout", 0, "100", 0, 1)
    ended(attempt, 1, 65, "bad data")

    overview = run_overview(small.run)

    assert overview.jobs.silence == "there is no squeue on this machine"
    assert told(overview) == [
        ("rollout 0/0", "submitted", "was submitted as job 100_0"),
        ("rollout 0/1", "failed", "bad data"),
    ]


def test_a_scheduler_that_is_down_is_no_error(
    small: SmallRun, slurm: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PATIENCE_SECONDS", 0.0)
    slurm.go_down()
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)

    overview = run_overview(small.run)

    assert overview.jobs.silence is not None
    assert "does not answer" in overview.jobs.silence
    assert activity(overview, "rollout") == {"submitted": 1, "missing": 1}
    assert overview.next_command == f"slime-stages status --run {small.run.root} --watch"


def test_an_output_made_again_by_hand_after_a_failure_has_not_failed(small: SmallRun, slurm: FakeCommands) -> None:
    plan = small.plan(0)
    small.rollout(plan, 0)
    attempt = submitted(small.run, "reward", 0, "100", 0, ago=5000.0)
    ended(attempt, 0, 65, "bad data", ago=4000.0)
    small.reward(plan, 0)
    small.rollout(plan, 0, samples=made_up_samples(plan, 0, word="other"), force=True)

    overview = run_overview(small.run)

    assert activity(overview, "reward") == {"stale": 1, "missing": 1}
    assert overview.tasks == []


def test_a_stopped_chain_says_what_to_do(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)
    write_chain(small.run, Chain(target=3, sbatch_folder="/sbatch"))
    stop_chain(small.run, "rollout 0/0: bad data", "repair the data")

    overview = run_overview(small.run)

    assert overview.chain is not None
    assert (overview.chain.target, overview.chain.stopped) == (3, "rollout 0/0: bad data")
    assert overview.next_command == "repair the data"


def test_a_chain_without_jobs_is_to_be_begun_again(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    submitted(small.run, "rollout", 0, "100", 0)
    write_chain(small.run, Chain(target=3, sbatch_folder="/sbatch"))

    overview = run_overview(small.run)

    assert overview.next_command == f"slime-stages iter --n 0 --executor slurm --run {small.run.root}"
    assert only(overview).reason == "job 100 is gone without a trace"


def test_the_wait_is_from_when_a_job_could_have_started(small: SmallRun, slurm: FakeCommands) -> None:
    """Submitted at 0 s; rollouts run from 40 s to 100 s, rewards start 7 and 30 s after that."""
    plan = small.plan(0)
    now = time.time()
    for shard in (0, 1):
        small.rollout(plan, shard)
        small.reward(plan, shard)
    for stage, job, starts, ends in (
        ("rollout", "100", (40, 40), (90, 100)),
        ("reward", "101", (107, 130), (131, 131)),
    ):
        submitted(small.run, stage, 0, job, 0, 1, ago=time.time() - now)
        for shard in (0, 1):
            path = small.run.manifest_path(stage, 0, shard, 2)
            made = read_manifest(path).model_copy(
                update={
                    "job": {"SLURM_JOB_ID": "555", "SLURM_ARRAY_JOB_ID": job},
                    "started": clock(now + starts[shard]),
                    "finished": clock(now + ends[shard]),
                }
            )
            path.write_bytes(made.to_bytes())

    [part] = run_overview(small.run).iterations

    waits = {name: stage.queue_seconds for name, stage in part.stages.items()}
    assert waits == {"rollout": pytest.approx(40, abs=0.1), "reward": 30.0, "train": None, "sync": None}
    assert part.queue_seconds == pytest.approx(70, abs=0.1)
    assert {name: stage.run_seconds for name, stage in part.stages.items()} == {
        "rollout": 60.0,
        "reward": 24.0,
        "train": None,
        "sync": None,
    }
    assert part.run_seconds == 84.0
    assert part.stages["rollout"].seconds == 110.0


def clock(moment: float) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=round(moment, 3))).isoformat(timespec="milliseconds")


def test_a_submission_that_nobody_finished_is_forgotten(small: SmallRun, slurm: FakeCommands) -> None:
    small.plan(0)
    attempt = submitted(small.run, "rollout", 0, "100", 0)
    replace(attempt, job_id=None).save()

    assert run_overview(small.run).tasks == []
