"""The corpus of hangs: whatever a reward function does, its sample ends in time and all others are scored."""

from __future__ import annotations

import time

import pytest

from slime_stages.errors import RetryableError
from slime_stages.rewards.pool import RewardTask
from slime_stages.sample import Sample
from tests.slime_stages.rewards.pool_tasks import act, open_pool

pytestmark = pytest.mark.alone
TIMEOUT, GRACE = 1.0, 2.0

CORPUS = {
    "catastrophic_regex": {"timeout"},
    "tower_of_nines": {"timeout"},
    "ignored_sigterm": {"timeout"},
    "busy_threads": {"timeout", "error"},
    "stopped": {"timeout"},
    "recurse": {"error"},
    "deep_recursion_in_c": {"error", "timeout"},
    "fork_bomb": {"error", "timeout"},
    "allocate_8_gib": {"oom", "timeout"},
    "eat_memory_in_a_child": {"oom", "timeout"},
    "crash": {"error"},
    "vanish": {"error"},
}


def test_all_hangs_end_within_the_deadline_and_two_seconds_and_the_rest_is_scored() -> None:
    hostile = [act(name) for name in CORPUS]
    good = [act("good", key=f"good {number}") for number in range(2 * len(hostile))]
    between = [task for trio in zip(hostile, good[::2], good[1::2], strict=True) for task in trio]
    started = time.monotonic()

    with open_pool(workers=2, timeout_seconds=TIMEOUT, memory_bytes=1 << 30) as pool:
        outcomes = {outcome.key: outcome for outcome in pool.score(between)}

    for name, statuses in CORPUS.items():
        assert outcomes[name].status.value in statuses, (name, outcomes[name])
        assert outcomes[name].rewards == [None]
        assert outcomes[name].message
        assert outcomes[name].seconds <= TIMEOUT + GRACE, (name, outcomes[name].seconds)
    assert [outcomes[task.key].rewards for task in good] == [[0.5]] * len(good)
    assert time.monotonic() - started < len(CORPUS) * (TIMEOUT + GRACE)


def test_answers_that_no_grader_can_finish_end_in_time_and_the_rest_is_scored() -> None:
    towers = ["9!!!!", "(10000000!)!", "2^9^9", "((9^9)^9)^9", "(x+y)^9*(x-y)^9*(x+2y)^9*(x+3y)^9", "{" * 5000]
    answers = [f"\\boxed{{{tower}}}" for tower in towers] + ["\\boxed{1/2}"] * 4
    tasks = [
        RewardTask(key=str(row), samples=[Sample(response=answer, label="x/2y").to_dict()], is_list=False)
        for row, answer in enumerate(answers)
    ]

    with open_pool(args={"rm_type": "math"}, workers=2, timeout_seconds=TIMEOUT, memory_bytes=1 << 30) as pool:
        outcomes = {int(outcome.key): outcome for outcome in pool.score(tasks)}

    assert len(outcomes) == len(answers)
    assert all(outcome.seconds <= TIMEOUT + GRACE for outcome in outcomes.values())
    assert {outcome.status.value for outcome in outcomes.values()} <= {"scored", "timeout", "oom"}
    assert [outcomes[row].rewards for row in range(len(towers), len(answers))] == [[0.0]] * 4


def test_programs_under_test_that_hang_are_wrong_and_not_null() -> None:
    programs = [
        "while True: pass",
        "import os, time\nfor _ in range(7):\n    os.fork()\n    time.sleep(0.05)\ntime.sleep(60)",
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    ]
    args = {"rm_type": "code", "code_timeout": 0.5, "reward_timeout": 4.0}
    tasks = [
        RewardTask(
            key=str(row),
            samples=[Sample(response=f"```python\n{source}\n```", label="assert True").to_dict()],
            is_list=False,
        )
        for row, source in enumerate([*programs, "a = 1"])
    ]

    with open_pool(args=args, timeout_seconds=4.0, memory_bytes=1 << 30) as pool:
        outcomes = {int(outcome.key): outcome.rewards for outcome in pool.score(tasks)}

    assert outcomes == {0: [0.0], 1: [0.0], 2: [0.0], 3: [1.0]}


def test_a_shard_that_is_out_of_time_says_what_is_left() -> None:
    tasks = [act("good"), *(act("ignored_sigterm", key=f"{row}") for row in range(30))]

    with open_pool(workers=1) as pool:
        list(pool.score([act("good")]))  # it is up
        started = time.monotonic()
        with pytest.raises(RetryableError, match=r"30 samples were not scored within 1 s: 0, 1, 2.* 19, …$") as caught:
            list(pool.score(tasks, seconds=1.0))

    assert caught.value.exit_code == 75
    assert time.monotonic() - started < 10


def test_in_a_unit_of_quick_samples_the_one_that_hangs_is_blamed_and_no_other() -> None:
    answers = ["\\boxed{3}"] * 200
    answers[150] = answers[155] = "\\boxed{(10000000!)!}"
    tasks = [
        RewardTask(key=str(row), samples=[Sample(response=answer, label="3x/y").to_dict()], is_list=False)
        for row, answer in enumerate(answers)
    ]

    with open_pool(args={"rm_type": "math"}, workers=1, timeout_seconds=TIMEOUT) as pool:
        outcomes = {int(outcome.key): outcome for outcome in pool.score(tasks)}

    hung = {row: outcome for row, outcome in outcomes.items() if outcome.status.value != "scored"}
    assert len(outcomes) == 200
    assert {row: outcome.message for row, outcome in hung.items()} == dict.fromkeys(
        (150, 155), "no answer after 1 s: killed"
    )
    assert all(TIMEOUT <= outcome.seconds <= TIMEOUT + GRACE for outcome in hung.values())
    assert all(outcome.rewards == [0.0] for row, outcome in outcomes.items() if row not in hung)
