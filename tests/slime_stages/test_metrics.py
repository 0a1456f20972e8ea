"""Metrics of scored samples, from shards as the stages commit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.metrics import evaluation_metrics, iteration_metrics, read_scored
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def begin(**settings: Any) -> SmallRun:
        sets = {"eval_datasets": {"held": {"path": "/held.jsonl", "min_eval_samples": settings.pop("fewest", 1)}}}
        config = resolved(rollout_batch_size=4, n_samples_per_prompt=2, **sets, **settings).config
        return SmallRun(run=RunDir(tmp_path / "run"), config=config).start(make_model_folder(tmp_path / "model"))

    return begin


def test_an_evaluation_is_measured_over_the_samples_that_have_a_reward(make: Any) -> None:
    small = make()
    plan = small.plan(0, "held")
    small.rollout(plan, 0)
    small.reward(plan, 0, rewards=[0.25, None])

    scored = read_scored(small.run, plan)

    assert scored is not None
    assert evaluation_metrics(scored, small.config, "held") == {
        "eval/held": 0.25,
        "eval/held-truncated_ratio": 0.5,
        "eval/held-null_ratio": 0.5,
        "eval/held/response_len/mean": 2.0,  # the second of three response tokens is a tool's
        "eval/held/response_len/median": 2.0,
        "eval/held/response_len/max": 2.0,
        "eval/held/response_len/min": 2.0,
    }


def test_too_few_samples_with_a_reward_have_no_mean(make: Any) -> None:
    small = make(fewest=2)
    plan = small.plan(0, "held")
    small.rollout(plan, 0)
    small.reward(plan, 0, rewards=[0.25, None])

    scored = read_scored(small.run, plan)

    assert scored is not None
    assert evaluation_metrics(scored, small.config, "held")["eval/held"] is None


def test_nothing_is_measured_before_every_shard_is_scored_as_it_is_now(make: Any) -> None:
    small = make()
    plan = small.plan(0)
    for shard in (0, 1):
        small.rollout(plan, shard)
    small.reward(plan, 0)
    assert read_scored(small.run, plan) is None

    small.reward(plan, 1)
    assert read_scored(small.run, plan) is not None

    small.rollout(plan, 1, samples=made_up_samples(plan, 1, word="other"), force=True)
    assert read_scored(small.run, plan) is None


def test_attempts_of_an_iteration_solve_so_many_of_its_prompts(make: Any) -> None:
    small = make(log_passrate=True)
    plan = small.plan(0)
    for shard in (0, 1):
        small.rollout(plan, shard)
        small.reward(plan, shard, rewards=[1.0, 1.0, 0.0, 1.0] if shard else [0.0, 0.0, None, 1.0])

    scored = read_scored(small.run, plan)
    assert scored is not None
    metrics = iteration_metrics(scored, small.config, [])

    assert metrics["passrate/pass@1"] == pytest.approx((0 + 0.5 + 1 + 0.5) / 4)
    assert metrics["passrate/pass@2"] == pytest.approx((0 + 1 + 1 + 1) / 4)
    assert metrics["rollout/raw_reward"] == pytest.approx(4 / 7)
