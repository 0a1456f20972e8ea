"""ReTool in the real stages, with programs in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.plugins import load_function
from slime_stages.sample import Sample, Status
from tests.examples.conftest import TURN, Example, read_text

MODULE, CONFIG = "examples.retool.generate", "examples/retool/retool.toml"
CUSTOM = "retool_max_calls: 2\nretool_seconds: 30\nretool_memory_gb: 1.0\nretool_programs: 2\n"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"prompt": [{"role": "user", "content": "6 x 7?"}], "label": "42"}) + "\n")
    return path


def test_the_model_runs_programs_reads_what_they_print_and_is_scored_for_its_box(
    begin: Callable[..., Example], says: Callable[..., None], prompts: Path, tiny_model: Path
) -> None:
    example = begin(CONFIG, prompts, CUSTOM, rollout_max_response_len=200)
    call = json.dumps({"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}})
    lines = [f"<tool_call>{call}</tool_call>", "<code>1 / 0</code>", "Answer: \\boxed{42}"]
    says(MODULE, lambda sample: lines[sample.response.count("<interpreter>")])

    first, second = example.roll()
    rewards = [json.loads(row["reward_parts"]) for row in example.score()]

    read = read_text(first, tiny_model)
    assert read.startswith("\n\n<interpreter>\n42\n</interpreter>\n\n\n\n<interpreter>\nTraceback")
    assert "ZeroDivisionError: division by zero\n</interpreter>" in read
    assert (first.status, sum(first.loss_mask or ()), second.response) == (Status.COMPLETED, 3 * TURN, first.response)
    assert rewards == [{"score": 1.0, "tool_calls": 2.0}] * 2


def test_a_program_too_many_ends_the_response(
    begin: Callable[..., Example], says: Callable[..., None], prompts: Path
) -> None:
    example = begin(CONFIG, prompts, CUSTOM, rollout_max_response_len=200)
    says(MODULE, lambda sample: "<code>print('again')</code>")

    first, _ = example.roll()

    assert (first.status, first.response.count("<interpreter>"), first.metadata["tool_calls"]) == (
        Status.TRUNCATED,
        2,
        2,
    )


@pytest.mark.parametrize(
    ("tag", "text", "says"),
    [
        ("tool_call", "{}", "no program: KeyError: 'arguments'"),
        ("tool_call", "print(1)", "no program: JSONDecodeError"),
        ("code", "import time; print(1, flush=True); time.sleep(9)", "1\n\nended after 0.5 s"),
        ("code", "import socket; socket.create_connection(('127.0.0.1', 1))", "refused"),
    ],
)
async def test_what_is_no_program_or_does_not_end_is_told_to_the_model(tag: str, text: str, says: str) -> None:
    run = load_function(f"{MODULE}.run")

    class Settings:
        retool_seconds, retool_memory_gb, retool_programs = 0.5 if "sleep" in text else 30, 1.0, 1

    assert says in await run(Settings(), tag, text)


@pytest.mark.parametrize(
    ("response", "calls", "score"), [("\\boxed{42}", 0, 1.0), ("\\boxed{7}", 0, -1.1), ("none", 16, -0.6)]
)
async def test_wrong_answers_cost_less_the_more_was_computed(response: str, calls: int, score: float) -> None:
    reward: Any = load_function("examples.retool.reward.reward")

    given = await reward(None, Sample(response=response, label="42", metadata={"tool_calls": calls}))

    assert given["score"] == pytest.approx(score)
