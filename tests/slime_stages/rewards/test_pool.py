from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages.errors import RetryableError, UsageError
from slime_stages.isolation.process_tree import children, descendants
from slime_stages.rewards.pool import RewardOutcome, RewardPool, RewardStatus, RewardTask
from slime_stages.sample import Sample
from tests.slime_stages.rewards.pool_tasks import HOSTILE, act, answer, is_alive, open_pool, wait_until


def score(pool: RewardPool, *tasks: RewardTask) -> dict[str, RewardOutcome]:
    return {outcome.key: outcome for outcome in pool.score(tasks)}


def told(outcome: RewardOutcome) -> tuple[str, str | None]:
    return outcome.status.value, outcome.message


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with open_pool() as pool:
        yield pool


def test_built_in_types_score_in_workers_as_they_do_in_place() -> None:
    with open_pool(args={"rm_type": "math"}) as pool:
        outcomes = score(pool, answer("\\boxed{2x+2}", "2(x+1)", "a"), answer("\\boxed{2}", "3", "b"))

    assert (outcomes["a"].rewards, outcomes["b"].rewards) == ([1.0], [0.0])
    assert (outcomes["a"].status, outcomes["a"].message) == (RewardStatus.SCORED, None)


def test_hanging_tasks_are_killed_at_the_deadline_while_the_others_are_scored(tmp_path: Path) -> None:
    hangs = ["catastrophic_regex", "tower_of_nines", "ignored_sigterm", "hang_with_children"]
    tasks = [act(name, tmp_path / "pids") for name in hangs] + [act("good", key=f"good {i}") for i in range(6)]

    with open_pool(workers=5, timeout_seconds=1.0) as pool:
        outcomes = score(pool, *tasks)
        child = int((tmp_path / "pids").read_text())
        assert wait_until(lambda: not is_alive(child))

    for name in hangs:
        assert told(outcomes[name]) == ("timeout", "no answer after 1 s: killed")
        assert outcomes[name].rewards == [None]
        assert outcomes[name].seconds >= 1.0
    assert [outcomes[f"good {i}"].rewards for i in range(6)] == [[0.5]] * 6


def test_deadlines_hold_while_nobody_reads_outcomes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with open_pool(workers=1, timeout_seconds=1.0) as pool:
        outcomes = pool.score([act("good"), act("hang_with_children", pids)])
        next(outcomes)
        assert wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))

        assert wait_until(lambda: not is_alive(int(pids.read_text())))

        assert next(outcomes).status == RewardStatus.TIMEOUT


def test_a_worker_that_dies_is_an_error_with_its_cause(pool: RewardPool) -> None:
    outcomes = score(pool, *map(act, ["vanish", "crash", "leave", "close_files", "good"]))

    assert told(outcomes["vanish"]) == ("error", "the worker exited with code 3")
    assert told(outcomes["crash"]) == ("error", "the worker died of SIGSEGV")
    assert outcomes["leave"].status == RewardStatus.ERROR
    assert str(outcomes["leave"].message).startswith("SystemExit: enough")
    assert outcomes["close_files"].status == RewardStatus.ERROR
    assert outcomes["good"].rewards == [0.5]


def test_a_worker_that_dies_between_tasks_costs_no_task() -> None:
    with open_pool(workers=1) as pool:
        outcomes = list(pool.score([act("die_idle")]))
        time.sleep(0.5)
        outcomes += pool.score([act("good")])

    assert [told(outcome) for outcome in outcomes] == [("scored", None)] * 2


def test_an_exception_is_an_error_with_type_text_and_place(pool: RewardPool) -> None:
    outcomes = score(pool, act("raise_value_error"), act("recurse"))

    assert outcomes["raise_value_error"].rewards == [None]
    message = str(outcomes["raise_value_error"].message)
    assert message.startswith("ValueError: no unit in `5 apples` (")
    assert message.endswith("in raise_value_error)")
    assert str(outcomes["recurse"].message).startswith("RecursionError: maximum recursion depth exceeded")


def test_what_is_no_reward_is_an_error_that_shows_the_value(pool: RewardPool) -> None:
    outcomes = score(pool, *map(act, ["return_none", "return_nan", "return_text", "return_nested_infinity"]))

    assert {outcome.status for outcome in outcomes.values()} == {RewardStatus.ERROR}
    assert "must be a finite number or a dict, not NoneType None" in str(outcomes["return_none"].message)
    assert "must be a finite number or a dict, not float nan" in str(outcomes["return_nan"].message)
    assert "must be a finite number or a dict, not str '1.0'" in str(outcomes["return_text"].message)
    assert "{'score': 1.0, 'parts': [inf]}" in str(outcomes["return_nested_infinity"].message)


def test_dicts_of_json_values_and_numpy_numbers_are_rewards(pool: RewardPool) -> None:
    outcomes = score(pool, act("return_dict"), act("return_numpy"))

    assert outcomes["return_dict"].rewards == [{"score": 1.0, "parts": [1, None, "text"]}]
    assert outcomes["return_numpy"].rewards == [0.5]


def test_processes_that_outlive_their_task_are_killed_and_the_reward_counts(pool: RewardPool, tmp_path: Path) -> None:
    outcomes = score(
        pool,
        act("child_that_outlives", tmp_path / "child"),
        act("daemon_that_outlives", tmp_path / "daemon"),
        act("forked_child_returns"),
    )

    rewards = {key: outcome.rewards for key, outcome in outcomes.items()}
    assert rewards == {"child_that_outlives": [0.25], "daemon_that_outlives": [0.25], "forked_child_returns": [0.75]}
    supervisor = pool._process.pid
    assert wait_until(lambda: len(descendants(supervisor)) == 2)  # its workers, and nothing else


def test_memory_of_a_worker_and_its_children_is_limited() -> None:
    tasks = [act("eat_memory"), act("eat_memory_in_a_child"), act("memory_error"), act("good")]

    with open_pool(memory_bytes=300 * 2**20) as pool:
        outcomes = score(pool, *tasks)

    for name in ("eat_memory", "eat_memory_in_a_child"):
        assert (outcomes[name].status, outcomes[name].rewards) == (RewardStatus.OOM, [None])
        assert str(outcomes[name].message).endswith("MiB, the limit is 300 MiB: killed")
    assert outcomes["memory_error"].status == RewardStatus.OOM
    assert outcomes["good"].rewards == [0.5]


def test_siblings_come_as_one_list_and_get_a_reward_each() -> None:
    siblings = [Sample(response=response).to_dict() for response in ("a", "bbb")]
    tasks = [
        RewardTask(key="list", samples=siblings, is_list=True),
        RewardTask(key="single", samples=siblings[1:], is_list=False),
    ]

    with open_pool(args={"custom_rm_path": f"{HOSTILE}.lengths"}, workers=1) as pool:
        outcomes = score(pool, *tasks)

    assert (outcomes["list"].rewards, outcomes["single"].rewards) == ([1.0, 3.0], [3.0])


def test_a_worker_is_replaced_after_its_share_of_tasks() -> None:
    with open_pool(workers=1, tasks_per_worker=2) as pool:
        outcomes = list(pool.score(act("own_pid", key=str(i)) for i in range(6)))

    pids = [outcome.rewards[0] for outcome in outcomes]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_a_worker_of_quick_tasks_is_replaced_after_its_share_too() -> None:
    tasks = (answer("\\boxed{2}", "2", str(i)) for i in range(300))
    workers: set[int] = set()

    with open_pool(args={"rm_type": "math"}, workers=1, tasks_per_worker=50) as pool:
        for outcome in pool.score(tasks):
            assert outcome.rewards == [1.0]
            workers.update(children(pool._process.pid))

    assert len(workers) >= 5  # a unit has up to 16, and is not cut for it


def test_tasks_are_taken_only_as_they_are_scored() -> None:
    taken = []

    def tasks() -> Iterator[RewardTask]:
        for i in range(50):
            taken.append(i)
            yield act("good", key=str(i))

    with open_pool() as pool:
        for done, _ in enumerate(pool.score(tasks()), start=1):
            assert len(taken) - done < 4


def test_outcomes_of_an_iteration_that_was_given_up_do_not_reach_the_next(pool: RewardPool) -> None:
    next(pool.score([act("good", key=f"old {i}") for i in range(4)]))

    assert [outcome.key for outcome in pool.score([act("good", key="new")])] == ["new"]


def test_signals_reach_the_programs_that_a_reward_function_starts(pool: RewardPool) -> None:
    assert score(pool, act("terminate_own_child"))["terminate_own_child"].rewards == [1.0]


def test_what_reward_functions_print_goes_to_stderr() -> None:
    script = (
        "from tests.slime_stages.rewards.pool_tasks import act, open_pool\n"
        "with open_pool() as pool:\n"
        "    print([outcome.rewards for outcome in pool.score([act('print_loudly')])])\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[[1.0]]\n"
    assert "printed by the reward function" in done.stderr
    assert "printed by its child" in done.stderr


def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = (
        f"from pathlib import Path\n"
        f"from tests.slime_stages.rewards.pool_tasks import act, open_pool\n"
        f"with open_pool(timeout_seconds=600.0) as pool:\n"
        f"    tasks = [act('tell_pid_and_hang', Path({str(tmp_path)!r}) / name) for name in 'ab']\n"
        f"    print([outcome for outcome in pool.score(tasks)])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    files = [tmp_path / "a", tmp_path / "b"]
    assert wait_until(lambda: all(file.exists() and len(file.read_text().split()) == 2 for file in files), 30)
    pids = [int(pid) for file in files for pid in file.read_text().split()] + children(parent.pid)
    assert len(pids) == 5
    assert all(map(is_alive, pids))

    parent.kill()
    parent.wait()

    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_a_killed_supervisor_takes_its_workers_along_and_is_reported() -> None:
    with open_pool(workers=1) as pool:
        outcomes = pool.score([act("own_pid"), act("ignored_sigterm")])
        worker = int(next(outcomes).rewards[0])  # type: ignore[arg-type]
        pool._process.kill()

        with pytest.raises(RetryableError, match="was killed by signal 9"):
            next(outcomes)
        assert wait_until(lambda: not is_alive(worker))


def test_a_reward_function_that_cannot_be_imported_is_an_error_of_each_task() -> None:
    with open_pool(args={"custom_rm_path": "no_such_module.reward"}) as pool:
        outcomes = list(pool.score([act("good", key="a"), act("good", key="b")]))

    assert [outcome.status for outcome in outcomes] == [RewardStatus.ERROR] * 2
    assert "`no_such_module.reward` cannot be imported" in str(outcomes[0].message)


def test_a_reward_function_whose_import_ends_the_worker_is_an_error_of_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly_import.py").write_text("import os\nos._exit(5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with open_pool(args={"custom_rm_path": "deadly_import.reward"}, workers=1) as pool:
        outcomes = list(pool.score([act("good", key="a"), act("good", key="b")]))

    message = "while importing the reward function: the worker exited with code 5"
    assert [told(outcome) for outcome in outcomes] == [("error", message)] * 2


@pytest.mark.parametrize("name", ["workers", "timeout_seconds", "memory_bytes", "tasks_per_worker", "requests"])
def test_a_pool_without_room_or_time_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be more than 0, not 0"):
        open_pool(**{name: 0})
