"""Solvers, rewriters and a selector in the real stages: one execution is many samples that count as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.sample import Sample, Status
from tests.examples.conftest import Example

MODULE, CONFIG = "examples.multi_agent.generate", "examples/multi_agent/multi_agent.toml"
CUSTOM = "multi_agent_count: 2\nmulti_agent_right: 1.2\nmulti_agent_wrong: 0.8\n"
RIGHT, WRONG = "hm</think>\\boxed{42}", "hm</think>\\boxed{41}"
SETTINGS = {"rollout_max_response_len": 8, "rollout_max_context_len": 600}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"prompt": "6 x 7?", "label": "42"}) + "\n")
    return path


def by_role(samples: list[Sample], index: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in samples:
        if sample.rollout_id == index:
            assert isinstance(sample.reward, float)
            found.setdefault(sample.metadata["role"], []).append(sample.reward)
    return found


def test_every_call_of_the_model_is_a_sample_and_a_right_choice_pays_all(
    begin: Callable[..., Example], says: Callable[..., None], prompts: Path
) -> None:
    example = begin(CONFIG, prompts, CUSTOM, **SETTINGS)
    solver_lines = iter([RIGHT, WRONG] * 2)
    lines = {
        "solver": lambda: next(solver_lines),
        "rewriter": lambda: RIGHT,
        "selector": lambda: "so</think>1? Judgment: 2",
    }
    says(MODULE, lambda sample: lines[sample.metadata["role"]]())

    samples = example.roll()
    rewards = example.score()

    assert sorted(sample.rollout_id or 0 for sample in samples) == [0] * 5 + [1] * 5
    for index in (0, 1):
        roles = by_role(samples, index)
        assert sorted(reward for role in ("solver", "rewriter") for reward in roles[role]).count(1.2) >= 3
        assert roles["selector"] == [1.2]
    assert {row["reward_status"] for row in rewards} == {"given"}
    selector = next(sample for sample in samples if sample.metadata["role"] == "selector")
    assert "6 x 7?" in selector.prompt
    assert "[2] \\boxed{42}" in selector.prompt
    assert {sample.response_length for sample in samples} == {4}
    assert len({tuple(sample.tokens) for sample in samples if sample.metadata["role"] == "solver"}) == 4


def test_where_no_solver_comes_to_an_answer_nobody_else_is_asked(
    begin: Callable[..., Example], says: Callable[..., None], prompts: Path
) -> None:
    example = begin(CONFIG, prompts, CUSTOM, **SETTINGS)
    says(MODULE, lambda sample: "still thinking")

    samples = example.roll()

    assert [by_role(samples, index) for index in (0, 1)] == [{"solver": [0.0, 0.0]}] * 2
    assert {sample.status for sample in samples} == {Status.COMPLETED}


def test_a_choice_of_a_number_that_is_none_is_no_choice(
    begin: Callable[..., Example], says: Callable[..., None], prompts: Path
) -> None:
    example = begin(CONFIG, prompts, CUSTOM, **SETTINGS)
    says(MODULE, lambda sample: "hm</think>Judgment: 7" if sample.metadata["role"] == "selector" else RIGHT)

    roles = by_role(example.roll(), 0)

    assert roles == {"solver": [0.8, 0.8], "rewriter": [0.8, 0.8], "selector": [0.0]}
