"""What is told of the scoring of a traced sample, whoever scored it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slime_stages.rewards.pool import RewardTask
from slime_stages.sample import Sample
from slime_stages.trace.handles import bind_trace
from tests.slime_stages.rewards.pool_tasks import HOSTILE, open_pool


def traced_task(label: Any, response: str = "") -> RewardTask:
    sample = Sample(label=label, response=response)
    bind_trace(sample)
    return RewardTask(key="0", samples=[sample.to_dict()], is_list=False)


@pytest.mark.parametrize(
    ("args", "task", "attributes"),
    [
        ({"rm_type": "math"}, traced_task("1", r"\boxed{1}"), None),
        ({"custom_rm_path": f"{HOSTILE}.reward"}, traced_task({"act": "vanish", "path": None}), {"status": "error"}),
        (
            {"custom_rm_path": f"{HOSTILE}.reward"},
            traced_task({"act": "raise_value_error", "path": None}),
            {"error_type": "ValueError"},
        ),
    ],
    ids=["by a reward type", "by a worker that vanished", "by a function that failed"],
)
def test_scoring_is_a_span(args: dict[str, Any], task: RewardTask, attributes: dict[str, Any] | None) -> None:
    with open_pool(args=args) as pool:
        [outcome] = pool.score([task])

    [text] = outcome.traces
    start, end = json.loads(text or "")
    assert (start["name"], start["type"], end["type"]) == ("reward_model", "span_start", "span_end")
    assert {key: end.get("attrs", {}).get(key) for key in attributes or {}} == (attributes or {})


def test_a_sample_that_is_not_traced_tells_nothing() -> None:
    with open_pool(args={"rm_type": "math"}) as pool:
        [outcome] = pool.score(
            [RewardTask(key="0", samples=[Sample(label="1", response=r"\boxed{1}").to_dict()], is_list=False)]
        )

    assert outcome.traces == [None]
