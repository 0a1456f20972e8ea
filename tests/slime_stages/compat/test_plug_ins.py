"""Files that were written for slime and import nothing else, in the real stages, before a real engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall, read_config
from stages.reward import run as reward
from stages.rollout import run as rollout
from tests.e2e.runs import at_version_0, new_run
from tests.slime_stages.cli.small_run import SmallRun

HERE = "tests.slime_stages.compat.plug_ins"
Start = Callable[..., tuple[RunDir, Plan]]


ONE_SHARD = {"rollout_shards": 1, "rollout_batch_size": 2}
NO_ENGINE = "tests.stages.rollout.user_functions.roll"
"""Answers with one token."""


@pytest.fixture
def start(tmp_path: Path, tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine) -> Start:
    def begin(**settings: Any) -> tuple[RunDir, Plan]:
        engine = at_version_0(tiny_engine)
        run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, **(ONE_SHARD | settings))
        return run, ensure_plan(run, 0)

    return begin


@pytest.fixture
def start_without_engine(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> Start:
    def begin(**settings: Any) -> tuple[RunDir, Plan]:
        given = ONE_SHARD | {"rollout_function_path": NO_ENGINE, "custom_rm_path": f"{HERE}.loops.reward"}
        run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **(given | settings))
        return run, ensure_plan(run, 0)

    return begin


def roll(run: RunDir, plan: Plan) -> tuple[Manifest, list[Sample]]:
    path = rollout.run(StageCall(stage="rollout", run=run.root, iteration=plan.iteration, shard=0, split=plan.split))
    return read_manifest(path), read_samples(path.with_suffix(".parquet"))


def score(run: RunDir, plan: Plan) -> list[dict[str, Any]]:
    reward.run(StageCall(stage="reward", run=run.root, iteration=plan.iteration, shard=0, split=plan.split))
    path = shard_manifest_path(run, plan, "reward", 0).with_suffix(".parquet")
    return read_shard(path, REWARD).to_pylist()


def check_aligned(sample: Sample) -> None:
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    assert all(
        (log_prob < 0) == bool(mask) for log_prob, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
    )


def test_a_search_loop_that_puts_its_tokens_together_by_hand_runs_as_it_is(start: Start) -> None:
    run, plan = start(
        custom_generate_function_path=f"{HERE}.search.generate", custom_rm_path=f"{HERE}.search.reward_func"
    )

    _, samples = roll(run, plan)
    rewards = score(run, plan)

    assert [sample.status for sample in samples] == [Status.TRUNCATED] * 4
    assert [sample.response.count("<information>") for sample in samples] == [2] * 4
    assert [row["reward"] for row in rewards] == [2.0] * 4
    for sample in samples:
        check_aligned(sample)


def test_a_tool_loop_grows_its_sample_and_keeps_its_own_attributes_for_the_reward(start: Start) -> None:
    run, plan = start(
        custom_generate_function_path=f"{HERE}.interpreter.generate",
        custom_rm_path=f"{HERE}.interpreter.reward_func",
        reward_key="score",
    )

    _, samples = roll(run, plan)
    rewards = score(run, plan)

    assert [getattr(sample, "tool_call_count", None) for sample in samples] == [2] * 4
    assert [sample.weight_versions for sample in samples] == [["0", "0"]] * 4
    assert [json.loads(row["reward_parts"]) for row in rewards] == [{"score": -1.0, "calls": 2}] * 4
    for sample in samples:
        check_aligned(sample)
        assert spans_of((sample.trace or {})["events"]) == ["generate", "model", "interpreter", "model", "interpreter"]
    for row in rewards:
        assert spans_of(json.loads(row["trace"])) == ["reward_model", "judged"]


def spans_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in events if event["type"] != "span_end"]


def test_agents_that_fan_out_and_score_themselves_share_an_execution(start: Start) -> None:
    run, plan = start(custom_generate_function_path=f"{HERE}.agents.generate", custom_rm_path=f"{HERE}.agents.reward")

    _, samples = roll(run, plan)
    rewards = score(run, plan)

    assert sorted(sample.rollout_id or 0 for sample in samples) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {row["reward_status"] for row in rewards} == {"given"}
    for index in range(4):
        own = sorted(sample.reward for sample in samples if sample.rollout_id == index)  # type: ignore[type-var]
        assert own[1] == own[2]  # the judge has the better solver's


def test_a_function_around_slimes_own_rollout_keeps_what_its_filter_keeps(start: Start) -> None:
    run, plan = start(
        rollout_function_path=f"{HERE}.loops.generate_rollout",
        dynamic_sampling_filter_path=f"{HERE}.loops.keep_even",
        custom_rm_path=f"{HERE}.loops.reward",
        rollout_batch_size=4,
    )

    manifest, samples = roll(run, plan)

    assert [sample.group_index for sample in samples] == [0, 0, 2, 2]
    assert [sample.reward for sample in samples] == [6.0] * 4
    assert manifest.metrics["rollout/wrapped"] == 1.0
    assert manifest.metrics["rollout/dynamic_filter/drop_odd"] == 2.0


def test_a_loop_of_ones_own_may_return_bare_lists(start: Start) -> None:
    run, plan = start(rollout_function_path=f"{HERE}.loops.generate_one_by_one", custom_rm_path=f"{HERE}.loops.reward")

    _, samples = roll(run, plan)

    assert [(sample.index, sample.response_length) for sample in samples] == [(0, 6), (1, 6), (2, 6), (3, 6)]


def test_an_evaluation_asks_the_prompts_of_the_stage(start: Start, tiny_prompts: Path) -> None:
    run, _ = start(
        eval_function_path=f"{HERE}.loops.generate_rollout",
        custom_rm_path=f"{HERE}.loops.reward",
        eval_datasets={"held": {"path": f"{tiny_prompts}@[0:2]", "max_response_len": 3}},
        n_samples_per_eval_prompt=1,
    )

    _, samples = roll(run, ensure_eval_plan(run, 0, "held"))

    assert [(sample.response_length, sample.reward) for sample in samples] == [(3, 3.0), (3, 3.0)]


def test_a_data_source_derived_from_slimes_goes_on_where_it_was(
    start_without_engine: Start, tiny_prompts: Path
) -> None:
    run, plan = start_without_engine(data_source_path=f"{HERE}.loops.Reversed")
    labels = [json.loads(line)["label"] for line in tiny_prompts.read_text().splitlines()]

    _, first = roll(run, plan)
    score(run, plan)
    small = SmallRun(run=run, shards=1, config=read_config(run, 0))
    small.train(plan)
    small.sync(plan)
    _, second = roll(run, ensure_plan(run, 1))

    assert [sample.label for sample in [*first, *second]] == [label for label in labels[:-5:-1] for _ in range(2)]
    assert [sample.metadata["offset"] for sample in second] == [3, 3, 4, 4]


def test_a_log_function_writes_where_the_run_keeps_its_metrics(start_without_engine: Start) -> None:
    run, plan = start_without_engine(custom_rollout_log_function_path=f"{HERE}.loops.log_rollout")

    roll(run, plan)
    score(run, plan)

    [line] = run.metrics_path("rollout").read_text().splitlines()
    expected = {"iteration": 0, "own/length/mean": 1.0, "rollout/response_len/max": 1.0, "rollout/repetition_frac": 0.0}
    assert {key: value for key, value in json.loads(line).items() if key in expected} == expected


def test_no_package_called_slime_is_installed_here() -> None:
    assert all(
        getattr(sys.modules[name], "__file__", None) is None for name in sys.modules if name.startswith("slime.")
    )
