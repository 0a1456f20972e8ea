"""Every state that SLURM knows, every exit code, and how often a task is submitted again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slime_stages.slurm.verdicts import FREE_LIMIT, TABLE, Action
from tests.slime_stages.slurm.ended_tasks import GIVE_UP, LOGS, RESUBMIT, RETRY, STOP, WAIT, action, ended, verdict


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


def test_the_documentation_has_every_state_and_the_bounds() -> None:
    text = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()

    states = {row for row in TABLE if row.isupper() and ":" not in row}
    assert [state for state in sorted(states) if not re.search(rf"\b{state}\b", text)] == []
    assert f"at most {FREE_LIMIT} times" in text
