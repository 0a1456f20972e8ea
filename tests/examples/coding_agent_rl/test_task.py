"""The example's tasks, graded in real sandboxes."""

from __future__ import annotations

import pytest

from examples.coding_agent_rl.prepare import FAULTS, tasks
from examples.coding_agent_rl.settings import Settings
from examples.coding_agent_rl.task import Task
from slime_stages.errors import DataError, UsageError
from tests.slime_stages.agent.sandbox.local_sandboxes import local_sandbox


@pytest.mark.parametrize("row", list(tasks())[:3], ids=lambda row: str(row["metadata"]["instance_id"]))
async def test_a_task_is_worth_1_with_its_fault_mended_and_0_without(row: dict[str, object]) -> None:
    task = Task.of(row["metadata"])  # type: ignore[arg-type]
    right, wrong, _ = FAULTS[task.instance_id.removeprefix("lists-")]

    async with local_sandbox() as sandbox:
        await task.prepare(sandbox)
        await task.state(sandbox)
        untouched = await task.diff(sandbox)
        content = await sandbox.read_file("/workspace/lists.py")
        await sandbox.write_file("/workspace/lists.py", content.replace(wrong, right))
        await sandbox.write_file("/workspace/new.txt", "new\n")
        await sandbox.write_file("/workspace/.harness/trajectory.jsonl", "{}")
        diff = await task.diff(sandbox)
    async with local_sandbox() as sandbox:
        assert await task.grade(sandbox, untouched, 30) == (0.0, {"applied_cleanly": True, "grading_solved": False})
    async with local_sandbox() as sandbox:
        assert await task.grade(sandbox, diff, 30) == (1.0, {"applied_cleanly": True, "grading_solved": True})
        assert await sandbox.read_file("/workspace/new.txt") == "new\n"

    assert untouched == ""
    assert "PROBLEM_STATEMENT.md" not in diff
    assert ".harness" not in diff


async def test_changes_that_cannot_be_applied_are_worth_0() -> None:
    task = Task.of(next(tasks())["metadata"])

    async with local_sandbox() as sandbox:
        assert await task.grade(sandbox, "no diff\n", 30) == (0.0, {"applied_cleanly": False, "grading_solved": False})


def test_a_row_that_nobody_could_grade_is_an_error() -> None:
    with pytest.raises(DataError, match="a task without `eval_cmd` or `workdir`"):
        Task.of({"workdir": "/testbed"})


def test_the_grader_of_scaleswe_rows_is_found() -> None:
    task = Task.of({"workdir": "/testbed", "image": "a.sif", "remote_env_info": {"f2p_script": "sh t.sh"}})

    assert (task.eval_cmd, task.image, task.files) == ("sh t.sh", "a.sif", {})


def test_a_variable_comes_before_a_plug_in_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Args:
        swe_agent = "codex"
        swe_agent_time_budget_sec = 5

    monkeypatch.setenv("SWE_AGENT", "claude_code")

    settings = Settings.of(Args())

    assert (settings.swe_agent, settings.swe_agent_time_budget_sec, settings.guard_seconds) == (
        "claude_code",
        5.0,
        785.0,
    )
    monkeypatch.setenv("SWE_TURN_LIMIT", "many")
    with pytest.raises(UsageError, match="swe_turn_limit is 'many'"):
        Settings.of(Args())
