"""Every example through the whole loop: two iterations of its own config, with a tiny model before a real engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.coding_agent_rl.prepare import tasks
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.lineage import committed_at
from tests.e2e.runs import mend
from tests.e2e.stage_calls import Forker
from tests.examples.conftest import Example
from tests.fixtures.tiny_model import prompt_row

CHATS = [prompt_row(number) for number in range(4)]
TEXTS = [{"prompt": f"{number} + 1?", "label": str(number + 1)} for number in range(4)]
TOWNS = [{**row, "reward_model": {"ground_truth": {"target": [row["label"]]}}} for row in CHATS]
EXAMPLES: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any]]] = {
    "quickstart/quickstart.toml": (CHATS, "", {}),
    "fully_async/fully_async.toml": (CHATS, "", {"over_sampling_batch_size": 3}),
    "search_r1/search_r1.toml": (TOWNS, "search_url: http://127.0.0.1:9\nsearch_topk: 1\nsearch_max_turns: 2\n", {}),
    "retool/retool.toml": (
        CHATS,
        "retool_max_calls: 2\nretool_seconds: 30\nretool_memory_gb: 1.0\nretool_programs: 2\n",
        {},
    ),
    "multi_agent/multi_agent.toml": (
        TEXTS,
        "multi_agent_count: 2\nmulti_agent_right: 1.2\nmulti_agent_wrong: 0.8\n",
        {"rollout_max_context_len": 600},
    ),
    "coding_agent_rl/coding_agent.toml": (
        list(tasks())[:4],
        "swe_agent_time_budget_sec: 60\nswe_turn_limit: 2\n",
        {"rollout_max_context_len": 2048},
    ),
}
"""Prompts, settings of the plug-in, and what else is smaller than the example's, by config."""


@pytest.mark.slow
@pytest.mark.parametrize("config", EXAMPLES)
def test_an_example_generates_scores_trains_and_publishes(
    begin: Callable[..., Example], forker: Forker, tmp_path: Path, config: str
) -> None:
    rows, custom, smaller = EXAMPLES[config]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    small = {"rollout_batch_size": 2, "global_batch_size": 4, "rollout_max_response_len": 24}
    evaluated = {"eval_prompt_data": ["heldout", str(prompts)]} if "quickstart" in config else {}
    run = begin(f"examples/{config}", prompts, custom, **{**small, **smaller, **evaluated}).run

    mend(run, forker, count=2)

    states = [item for iteration in (0, 1) for item in iteration_states(run, ensure_plan(run, iteration), deep=True)]
    assert {item.call.title: item.state.reason for item in states if not item.state.is_fresh} == {}
    for iteration in (0, 1):
        metrics = committed_at(run, "train", iteration).metrics
        assert math.isfinite(metrics["train/grad_norm"] or 0.0), metrics
        assert run.weights_path(iteration + 1).exists()
