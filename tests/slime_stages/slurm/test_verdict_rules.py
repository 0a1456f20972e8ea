"""What a verdict depends on beside the state: progress, memory, persons, nodes, and why a job is still queued."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_stages.slurm.verdicts import Action, Verdict
from tests.slime_stages.slurm.ended_tasks import (
    GIVE_UP,
    GO_ON,
    RESUBMIT,
    RETRY,
    STOP,
    WAIT,
    action,
    attempt,
    ended,
    verdict,
)

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
