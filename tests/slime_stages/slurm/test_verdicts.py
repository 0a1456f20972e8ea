"""Every state that SLURM knows, and every rule that goes beyond one state."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime_stages.slurm.jobs import Attempt, TaskEnd
from slime_stages.slurm.queue import JobInfo
from slime_stages.slurm.verdicts import FREE_LIMIT, TABLE, Action, TaskRun, Verdict, judge

WAIT, RESUBMIT, RETRY, GIVE_UP, STOP = Action
GO_ON = "slime-stages iter --n 0 --executor slurm --run /runs/a"
LOGS = "slime-stages logs rollout --run /runs/a --iter 5 --shard 3"


def attempt(number: int = 0, *, stage: str = "rollout", job_id: str | None = "100", **fields: Any) -> Attempt:
    return Attempt(
        folder=Path(f"/runs/a/jobs/000005-{stage}/attempt-{number:03d}"),
        number=number,
        stage=stage,
        iteration=5,
        shards=(3,) if stage in ("rollout", "reward") else (None,),
        job_id=job_id,
        is_array=stage in ("rollout", "reward"),
        **fields,
    )


def ended(
    state: str | None,
    exit_code: int | None = None,
    message: str = "",
    *,
    stage: str = "rollout",
    nodes: str = "node1",
    reason: str = "",
    signal: int = 0,
    progress: int = 0,
    hint: str | None = None,
    extra: dict[str, Any] | None = None,
    failed_nodes: tuple[str, ...] = (),
    **fields: Any,
) -> TaskRun:
    """A task that ran for an hour. An exit code is what it told itself; without one it was killed."""
    info = JobInfo(
        job_id="100_0",
        state=state or "",
        reason=reason,
        exit_code=exit_code or 0,
        signal=signal,
        nodes=nodes,
        started=1000.0,
        ended=4600.0,
        failed_nodes=failed_nodes,
    )
    told = TaskEnd(exit_code=exit_code, message=message, hint=hint, progress=progress, extra=extra or {})
    return TaskRun(
        attempt=fields.pop("attempt", attempt(stage=stage)),
        info=info if state else None,
        end=told if exit_code is not None else None,
        shard=3 if stage in ("rollout", "reward") else None,
        **{"progress": progress, **fields},
    )


def verdict(*history: TaskRun, max_retries: int = 2) -> Verdict:
    return judge(history, max_retries=max_retries)


def action(*history: TaskRun, max_retries: int = 2) -> Action:
    return verdict(*history, max_retries=max_retries).action


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        *((state, WAIT) for state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING")),
        *((state, WAIT) for state in ("RESIZING", "SIGNALING", "STAGE_OUT", "POWER_UP_NODE", "UPDATE_DB")),
        *((state, WAIT) for state in ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")),
        *((state, WAIT) for state in ("EXPEDITING",)),
        *((state, RESUBMIT) for state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "LAUNCH_FAILED")),
        ("RECONFIG_FAIL", RESUBMIT),
        ("TIMEOUT", GIVE_UP),
        ("DEADLINE", GIVE_UP),
        ("OUT_OF_MEMORY", GIVE_UP),
        ("CANCELLED", STOP),
        ("FAILED", RETRY),
        ("COMPLETED", RETRY),
        ("SOMETHING_NEW", RETRY),
    ],
)
def test_every_state_has_its_verdict(state: str, wanted: Action) -> None:
    assert action(ended(state)) is wanted


def test_no_row_of_the_table_names_a_word_that_is_not_filled_in() -> None:
    from slime_stages.slurm.advice import words_of

    words = words_of(ended("FAILED", 1, "boom"), 1)

    for row in TABLE.values():
        assert row.reason.format(**words)
        assert row.advice is None or row.advice.format(**words)


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "CANCELLED+"])
def test_what_slurm_adds_to_a_state_is_not_read(state: str) -> None:
    assert action(ended(state)) is STOP


# exit codes, as the task told them; SLURM says FAILED


@pytest.mark.parametrize(
    ("exit_code", "wanted"),
    [(0, RETRY), (1, RETRY), (2, GIVE_UP), (65, GIVE_UP), (66, RESUBMIT), (70, RETRY), (75, RETRY), (130, RETRY)],
)
def test_every_exit_code_has_its_verdict(exit_code: int, wanted: Action) -> None:
    assert action(ended("FAILED", exit_code, "as it told")) is wanted


def test_what_the_task_told_counts_where_slurm_saw_it_end_well() -> None:
    assert action(ended("COMPLETED", 65, "row 3 has no tokens")) is GIVE_UP


def test_a_task_that_told_its_end_is_judged_while_slurm_still_has_it_running() -> None:
    assert action(ended("RUNNING", 1, "boom")) is RETRY
    assert action(ended("COMPLETING", 2, "no such flag")) is GIVE_UP


def test_what_it_told_before_slurm_put_it_back_into_the_queue_does_not_count() -> None:
    run = ended("RUNNING", 75)
    assert run.info is not None

    assert action(replace(run, info=replace(run.info, restarts=1))) is WAIT


def test_an_error_gives_its_own_hint_as_advice() -> None:
    result = verdict(ended("FAILED", 65, "shard 3 is torn", hint="slime-stages rollout --shard 3 --force"))

    assert (result.reason, result.advice) == ("shard 3 is torn", "slime-stages rollout --shard 3 --force")


def test_an_error_without_a_hint_points_at_the_log() -> None:
    assert verdict(ended("FAILED", 2, "no such flag")).advice == LOGS


def test_a_missing_input_is_a_closed_gate_unless_the_inputs_were_there() -> None:
    assert action(ended("FAILED", 66, "there is no manifest")) is RESUBMIT
    assert action(ended("FAILED", 66, "the model is gone", inputs_ready=True)) is RETRY


# counted retries


def test_different_errors_are_retried_as_often_as_allowed() -> None:
    first, second, third = (ended("FAILED", 1, word) for word in ("apple", "pear", "plum"))

    assert action(first) is RETRY
    assert action(first, second) is RETRY
    assert action(first, second, third) is GIVE_UP
    assert verdict(first, second, third).reason == "plum; that was failure 3, of 2 that are retried"
    assert action(first, second, third, max_retries=3) is RETRY
    assert action(first, max_retries=0) is GIVE_UP


def test_the_same_error_twice_ends_it_whatever_the_numbers_in_it() -> None:
    first = ended("FAILED", 70, "engine at port 30123 of node1 did not answer in 900 s")
    second = ended("FAILED", 70, "engine at port 41777 of node2 did not answer in 900 s")

    result = verdict(first, second)

    assert result.action is GIVE_UP
    assert result.reason == "engine at port 41777 of node2 did not answer in 900 s; the same as before"
    assert result.advice == LOGS


def test_the_same_words_with_another_exit_code_are_another_error() -> None:
    assert action(ended("FAILED", 1, "boom"), ended("FAILED", 70, "boom")) is RETRY


def test_an_exit_without_a_word_is_the_same_error_by_its_code() -> None:
    """As where a set-up line fails, before the task can tell anything."""
    run = ended("FAILED")
    assert run.info is not None
    first, second = (replace(run, info=replace(run.info, exit_code=code)) for code in (127, 1))

    assert action(first, first) is GIVE_UP
    assert action(first, second) is RETRY
    assert verdict(first).reason == "ended with exit code 127"


def test_what_the_cluster_did_between_two_errors_changes_nothing() -> None:
    assert action(ended("FAILED", 1, "boom"), ended("PREEMPTED"), ended("FAILED", 1, "boom")) is GIVE_UP


def test_a_task_that_ends_well_and_commits_nothing_is_retried_and_counted() -> None:
    run = ended("COMPLETED", 0)

    assert [action(*[run] * times) for times in (1, 2, 3)] == [RETRY, RETRY, GIVE_UP]


# free resubmission


def test_free_resubmissions_are_not_counted_against_errors() -> None:
    assert action(*[ended("PREEMPTED")] * 5, ended("FAILED", 1, "boom")) is RETRY


def test_free_resubmissions_without_progress_end_some_time() -> None:
    assert action(*[ended("PREEMPTED")] * FREE_LIMIT) is RESUBMIT
    result = verdict(*[ended("PREEMPTED")] * (FREE_LIMIT + 1))
    assert result.action is GIVE_UP
    assert result.reason == f"was preempted; that was so, or alike, {FREE_LIMIT + 1} times"
    assert result.advice == LOGS


def test_progress_makes_room_for_more_free_resubmissions() -> None:
    runs = [ended("PREEMPTED", progress=number) for number in range(1, 3 * FREE_LIMIT)]

    assert action(*runs) is RESUBMIT


# time limits and drains


@pytest.mark.parametrize(
    ("progress", "wanted"), [((12,), RESUBMIT), ((0,), GIVE_UP), ((12, 30), RESUBMIT), ((12, 12), GIVE_UP)]
)
def test_a_time_limit_is_forgiven_while_the_journal_grows(progress: tuple[int, ...], wanted: Action) -> None:
    assert action(*(ended("TIMEOUT", progress=count) for count in progress)) is wanted


@pytest.mark.parametrize(
    ("progress", "wanted"), [((12,), RESUBMIT), ((0,), RETRY), ((12, 30), RESUBMIT), ((12, 12), RETRY)]
)
def test_a_drain_is_free_if_it_got_further_and_counted_if_not(progress: tuple[int, ...], wanted: Action) -> None:
    assert action(*(ended("FAILED", 75, "drained", progress=count) for count in progress)) is wanted


def test_drains_that_get_nowhere_are_not_the_same_error_but_counted() -> None:
    run = ended("FAILED", 75, "drained")

    assert [action(*[run] * times) for times in (1, 2, 3)] == [RETRY, RETRY, GIVE_UP]


def test_a_time_limit_in_vain_advises_twice_the_limit() -> None:
    result = verdict(ended("TIMEOUT", stage="train", asked={"time": "1-12"}))

    assert result.reason == "ran into its time limit after 01:00:00 and got no further"
    assert result.advice == f"{GO_ON} --slurm-train-time 3-00:00:00"


def test_without_a_known_limit_the_advice_is_twice_the_time_it_took() -> None:
    assert verdict(ended("TIMEOUT")).advice == f"{GO_ON} --slurm-rollout-time 02:00:00"


# memory


def test_out_of_memory_names_the_sample_the_batch_and_the_settings() -> None:
    run = ended(
        "OUT_OF_MEMORY",
        1,
        stage="train",
        asked={"mem": "64G"},
        extra={"longest_sample": 31240},
        sizes={"micro_batch_size": 4},
    )

    result = verdict(run)

    assert result.reason == "ran out of memory; longest sample 31,240 tokens, micro-batch of 4"
    assert result.advice == f"{GO_ON} --slurm-train-mem 128G, or lower --micro-batch-size, --max-tokens-per-gpu"


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        ("rollout", f"{GO_ON} --slurm-rollout-mem-per-cpu 8000M, or lower --sglang-server-concurrency"),
        ("reward", f"{GO_ON} --slurm-reward-mem-per-cpu 8000M, or lower --reward-workers, --reward-memory-gb"),
        ("sync", f"{GO_ON} --slurm-sync-mem-per-cpu 8000M"),
    ],
)
def test_every_stage_has_memory_settings_of_its_own(stage: str, advice: str) -> None:
    assert verdict(ended("OUT_OF_MEMORY", stage=stage, asked={"mem-per-cpu": "4000M"})).advice == advice


@pytest.mark.parametrize(
    "log",
    [
        "slurmstepd: error: Step 100.0 exceeded memory limit (2048 > 1024), being killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=100.0. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: Exceeded job memory limit",
        "slurmstepd-node2: error: StepId=7.0 exceeded memory limit (166776832 > 104857600), being killed\n"
        "slurmstepd-node2: error: *** STEP 7.0 ON node2 CANCELLED AT 2026-11-30T01:51:42 ***",
    ],
)
def test_a_job_killed_for_memory_that_is_only_failed_is_known_by_its_log(log: str) -> None:
    assert action(ended("FAILED", signal=9, log=f"loading\n{log}\n")) is GIVE_UP
    assert verdict(ended("CANCELLED", log=log)).reason == "ran out of memory"
    assert verdict(ended(None, log=log)).reason == "ran out of memory"


def test_signal_125_and_the_schedulers_reason_mean_memory() -> None:
    assert verdict(ended("FAILED", signal=125)).reason == "ran out of memory"
    assert verdict(ended("FAILED", signal=9, reason="OutOfMemory")).reason == "ran out of memory"


def test_memory_in_the_log_of_a_task_that_told_another_error_is_not_its_end() -> None:
    log = "warning: a reward process ran out of memory; its reward is null\n"

    assert verdict(ended("FAILED", 70, "no engine", log=log)).reason == "no engine"


def test_gpu_memory_is_another_thing_than_the_jobs_memory() -> None:
    message = "train 5 failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

    result = verdict(ended("FAILED", 70, message, stage="train"))

    assert (result.action, result.reason) == (GIVE_UP, "ran out of GPU memory")
    assert result.advice is not None
    assert result.advice.startswith("lower --micro-batch-size, or add --use-dynamic-batch-size")


def test_a_kill_out_of_nowhere_is_retried_once_and_then_advises_memory() -> None:
    run = ended("FAILED", signal=9, asked={"mem": "1T"})

    assert action(run) is RETRY
    result = verdict(run, run)
    assert result.action is GIVE_UP
    assert result.reason.startswith("was killed by signal 9")
    assert result.advice == f"{GO_ON} --slurm-rollout-mem 2T, or lower --sglang-server-concurrency"


# cancelled


def test_cancelled_stops_the_chain_and_says_how_to_go_on() -> None:
    result = verdict(ended("CANCELLED"))

    assert (result.action, result.reason, result.advice) == (STOP, "was cancelled", GO_ON)


def test_cancelled_stops_it_also_where_the_task_drained_in_time() -> None:
    assert action(ended("CANCELLED", 75, "drained", progress=9)) is STOP


def test_cancelled_for_a_dependency_is_nobodys_wish() -> None:
    assert action(ended("CANCELLED", reason="DependencyNeverSatisfied")) is RESUBMIT


def test_a_waiting_job_that_a_person_cancelled_is_cancelled() -> None:
    assert action(ended("CANCELLED", reason="Dependency")) is STOP


def test_a_task_told_to_end_before_it_could_listen_is_retried_and_counted() -> None:
    """As where a job is preempted, and not put back into the queue, while Python is still starting."""
    run = ended("FAILED")
    assert run.info is not None
    run = replace(run, info=replace(run.info, exit_code=143))

    assert [action(*[run] * times) for times in (1, 2, 3)] == [RETRY, RETRY, GIVE_UP]


# jobs that are gone, or were never there


def test_a_claim_that_was_never_submitted_is_taken_up_free() -> None:
    assert action(ended(None, attempt=attempt(job_id=None))) is RESUBMIT


def test_a_job_gone_without_a_trace_is_retried_and_counted() -> None:
    gone = ended(None)

    assert [action(*[gone] * times) for times in (1, 2, 3)] == [RETRY, RETRY, GIVE_UP]
    assert verdict(gone).reason == "job 100 is gone without a trace"


def test_a_job_the_scheduler_forgot_is_judged_by_what_it_told() -> None:
    assert action(ended(None, 65, "torn")) is GIVE_UP


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***", GIVE_UP),
        ("CANCELLED AT 2026-01-31T12:00:00 DUE TO PREEMPTION ***", RESUBMIT),
        ("CANCELLED AT 2026-01-31T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***", RESUBMIT),
        ("CANCELLED AT 2026-01-31T12:00:00 ***", STOP),
        ("CANCELLED AT 2026-01-31T12:00:00 DUE TO JOB REQUEUE ***", RETRY),
    ],
)
def test_without_accounting_the_log_tells_how_a_forgotten_job_ended(words: str, wanted: Action) -> None:
    assert action(ended(None, log=f"slurmstepd: error: *** STEP 100.0 ON node1 {words}\n")) is wanted


# nodes


def test_a_node_is_avoided_once_it_failed_twice() -> None:
    first, second = ended("NODE_FAIL", nodes="node2"), ended("NODE_FAIL", nodes="node2")

    assert verdict(first).exclude == ()
    assert verdict(first, second).exclude == ("node2",)
    assert verdict(first, ended("NODE_FAIL", nodes="node3")).exclude == ()


def test_failures_before_slurm_put_the_job_back_count_too() -> None:
    run = ended("NODE_FAIL", nodes="gpu[07-08]", failed_nodes=("gpu08",))

    assert verdict(run).exclude == ("gpu08",)


def test_a_node_once_avoided_stays_avoided() -> None:
    run = ended("FAILED", 1, "boom", attempt=attempt(excluded_nodes=("node9",)))

    assert verdict(run).exclude == ("node9",)


@pytest.mark.parametrize("message", ["CUDA error: uncorrectable ECC error", "no CUDA-capable device is detected"])
def test_a_node_with_a_broken_gpu_is_avoided_at_once_and_the_same_elsewhere_is_retried(message: str) -> None:
    first, second = ended("FAILED", 70, message, nodes="node1"), ended("FAILED", 70, message, nodes="node2")

    assert verdict(first) == Verdict(action=RETRY, reason=f"node1 has trouble: {message}", exclude=("node1",))
    assert verdict(first, second).exclude == ("node1", "node2")
    assert action(first, second) is RETRY


# queued jobs that will not start


@pytest.mark.parametrize(
    ("reason", "wanted", "has_advice"),
    [
        ("Priority", WAIT, False),
        ("Resources", WAIT, False),
        ("Dependency", WAIT, False),
        ("BeginTime", WAIT, False),
        ("JobHeldUser", WAIT, True),
        ("JobHeldAdmin", WAIT, True),
        ("PartitionTimeLimit", WAIT, True),
        ("BadConstraints", WAIT, True),
        ("InvalidQOS", WAIT, True),
        ("DependencyNeverSatisfied", RESUBMIT, False),
        ("launch failed requeued held", RESUBMIT, False),
        ("launch_failed_requeued_held", RESUBMIT, False),
    ],
)
def test_a_queued_job_is_waited_for_unless_it_can_never_start(reason: str, wanted: Action, has_advice: bool) -> None:
    result = verdict(ended("PENDING", reason=reason))

    assert (result.action, result.advice is not None) == (wanted, has_advice)


def test_a_held_job_is_released_by_hand() -> None:
    assert verdict(ended("PENDING", reason="JobHeldUser")).advice == (
        f"scontrol release 100_0, or scancel 100_0 and then {GO_ON}"
    )


def test_the_documentation_has_every_state_and_the_bounds() -> None:
    text = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()

    states = {row for row in TABLE if row.isupper() and ":" not in row}
    assert [state for state in sorted(states) if not re.search(rf"\b{state}\b", text)] == []
    assert f"at most {FREE_LIMIT} times" in text
