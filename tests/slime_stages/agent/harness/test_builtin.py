"""The built-in agent at work in a real sandbox, with a model that says what is written here."""

from __future__ import annotations

import json

import pytest

from slime_stages.agent.adapters import OpenAIAdapter
from slime_stages.agent.harness.builtin import BuiltinHarness
from slime_stages.agent.harness.tools import Tools
from slime_stages.agent.sandbox.detached import OUT_OF_BUDGET
from slime_stages.agent.sandbox.protocol import Sandbox
from tests.slime_stages.agent.harness.scripted_model import SESSION, Model, call, saying
from tests.slime_stages.agent.sandbox.local_sandboxes import local_sandbox


async def work(
    sandbox: Sandbox, model: Model, *, turn_limit: int = 9, session_id: str = SESSION, seconds: float = 30
) -> int:
    return await BuiltinHarness(turn_limit=turn_limit).run(
        sandbox,
        workdir="/workspace",
        session_id=session_id,
        adapter_url=model.url,
        time_budget_sec=seconds,
        prompt="Mend sum.py.",
    )


async def test_the_agent_reads_edits_tests_and_says_that_it_is_done() -> None:
    script = [
        call("grep", pattern="def .*add") + call("read", path="sum.py"),
        call("edit", path="sum.py", old="a - b", new="a + b"),
        call("bash", command="python3 -c 'import sum; print(sum.add(1, 2))'"),
        "It adds now.",
    ]

    with saying(OpenAIAdapter, script) as model:
        async with local_sandbox() as sandbox:
            await sandbox.write_file("/workspace/sum.py", "def add(a, b):\n    return a - b\n")
            code = await work(sandbox, model)
            mended = await sandbox.read_file("/workspace/sum.py")
            lines = (await sandbox.read_file("/workspace/.harness/trajectory.jsonl")).splitlines()
        [sample] = await model.samples()

    assert code == 0
    assert mended == "def add(a, b):\n    return a + b\n"
    messages = [json.loads(line) for line in lines]
    assert [message["content"] for message in messages if message["role"] == "tool"] == [
        "./sum.py:1:def add(a, b):\n",
        "     1\tdef add(a, b):\n     2\t    return a - b\n",
        "sum.py is changed",
        "3\n",
    ]
    assert sample.reward == 1.0
    assert sample.loss_mask is not None
    assert 0 < sum(sample.loss_mask) < sample.response_length  # the tools' answers are not trained on


async def test_an_agent_without_end_is_stopped_by_turns_or_time() -> None:
    with saying(OpenAIAdapter, lambda _: call("bash", command="sleep 0.3")) as model:
        async with local_sandbox() as sandbox:
            assert await work(sandbox, model, turn_limit=2) == 2
            assert await work(sandbox, model, seconds=0.5) == OUT_OF_BUDGET


async def test_an_agent_whose_session_nobody_opened_is_refused() -> None:
    with saying(OpenAIAdapter, ["unasked"]) as model:
        async with local_sandbox() as sandbox:
            assert await work(sandbox, model, session_id="guessed") == 1
            last = json.loads((await sandbox.read_file("/workspace/.harness/trajectory.jsonl")).splitlines()[-1])

    assert last["role"] == "error"


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("bash", {"command": "echo a; exit 3"}, "a\n\n(exit code 3)"),
        ("read", {"path": "two", "first_line": "2"}, "     2\tb\n"),
        ("read", {"path": "none"}, "cat: none: No such file or directory\n"),
        ("edit", {"path": "new/file", "old": "", "new": "x"}, "new/file is new"),
        ("edit", {"path": "two", "old": "c", "new": "x"}, "`old` stands 0 times in two; it must stand there once"),
        ("edit", {"path": "twice", "old": "c", "new": "x"}, "`old` stands 2 times in twice; it must stand there once"),
        ("grep", {"pattern": "^b$"}, "./two:2:b\n"),
        ("grep", {"pattern": "q"}, "(no match)"),
        ("grep", {"path": "."}, "grep: unknown arguments [], missing ['pattern']"),
        ("fly", {}, "there is no tool fly; there are bash, read, edit, grep"),
    ],
)
async def test_a_tool_answers_whatever_it_is_given(name: str, arguments: dict[str, str], answer: str) -> None:
    async with local_sandbox() as sandbox:
        await sandbox.write_file("/workspace/two", "a\nb\n")
        await sandbox.write_file("/workspace/twice", "cc")

        assert await Tools(sandbox, "/workspace").call(name, arguments) == answer


async def test_a_long_answer_is_cut_in_the_middle() -> None:
    async with local_sandbox() as sandbox:
        answer = await Tools(sandbox, "/workspace").call("bash", {"command": "seq 10000"})

    assert answer.startswith("1\n2\n")
    assert answer.endswith("10000\n")
    assert len(answer) < 16_100
