"""Functions that take over a rollout shard, an evaluation, the prompts or the log, in the stages as they are run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.errors import DataError
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan
from slime_stages.lineage import shard_manifest_path
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config
from stages.reward import run as reward
from stages.rollout import run as rollout
from tests.e2e.runs import new_run
from tests.slime_stages.cli.small_run import SmallRun
from tests.stages.rollout import user_functions

HERE = "tests.stages.rollout.user_functions"
Start = Callable[..., RunDir]


@pytest.fixture
def start(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> Start:
    def begin(**settings: Any) -> RunDir:
        return new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=None, **settings)

    return begin


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    user_functions.LOGGED.clear()


def roll(run: RunDir, plan: Plan, shard: int = 0, *, force: bool = False) -> Manifest:
    call = StageCall(
        stage="rollout", run=run.root, iteration=plan.iteration, shard=shard, split=plan.split, force=force
    )
    return read_manifest(rollout.run(call))


def score(run: RunDir, plan: Plan, shard: int = 0) -> Manifest:
    call = StageCall(stage="reward", run=run.root, iteration=plan.iteration, shard=shard, split=plan.split)
    return read_manifest(reward.run(call))


def samples_of(run: RunDir, plan: Plan, shard: int = 0) -> list[Any]:
    return read_samples(shard_manifest_path(run, plan, "rollout", shard).with_suffix(".parquet"))


def lines(run: RunDir, name: str) -> list[dict[str, Any]]:
    path = run.metrics_path(name)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_rollout_function_makes_each_shard_of_its_slice_of_the_plan(start: Start) -> None:
    run = start(rollout_function_path=f"{HERE}.roll")
    plan = ensure_plan(run, 0)

    manifests = [roll(run, plan, shard) for shard in (0, 1)]

    samples = samples_of(run, plan, 1)
    assert [(sample.group_index, sample.index, sample.tokens[-1]) for sample in samples] == [
        (2, 4, 1),
        (2, 5, 2),
        (3, 6, 1),
        (3, 7, 2),
    ]
    assert [manifest.metrics["rollout/own"] for manifest in manifests] == [2.0, 2.0]
    assert [manifest.counts["kept"] for manifest in manifests] == [2, 2]


def test_every_prompt_that_a_function_leaves_is_dropped_for_a_reason(start: Start) -> None:
    run = start(rollout_function_path=f"{HERE}:roll_some", rollout_shards=1)

    manifest = roll(run, ensure_plan(run, 0))

    counts = manifest.counts
    assert (counts["issued"], counts["kept"], counts["dropped"], counts["carried"]) == (4, 1, 3, 0)
    reasons = {name: count for name, count in counts.items() if name.startswith("dropped/")}
    assert reasons == {"dropped/given_back": 1, "dropped/not_asked": 1, "dropped/not_returned": 1}


def test_a_function_that_returns_nothing_has_failed(start: Start) -> None:
    run = start(rollout_function_path=f"{HERE}.roll_nothing")

    with pytest.raises(DataError, match="returned no sample for 0 prompts"):
        roll(run, ensure_plan(run, 0))


def test_an_evaluation_function_gives_rewards_and_the_metrics_are_told_once(start: Start, tiny_prompts: Path) -> None:
    run = start(
        eval_function_path=f"{HERE}.evaluate",
        eval_datasets={"held": {"path": f"{tiny_prompts}@[0:3]", "max_response_len": 4}},
        n_samples_per_eval_prompt=2,
        eval_shards=2,
        log_passrate=True,
        custom_eval_rollout_log_function_path=f"{HERE}.log_evaluation",
    )
    plan = ensure_eval_plan(run, 0, "held")
    assert [(shard.start, shard.stop) for shard in plan.shards] == [(0, 1), (1, 3)]

    for shard in (0, 1):
        roll(run, plan, shard)
    assert score(run, plan, 0).counts == {"given": 2}
    assert lines(run, "eval") == []
    score(run, plan, 1)
    score(run, plan, 1)

    [line] = lines(run, "eval")  # its own log function failed, which costs nothing else
    assert (line["iteration"], line["eval/held"]) == (0, 0.5)
    assert line["eval/held-truncated_ratio"] == pytest.approx(2 / 6)  # the first sample of each shard
    assert (line["eval/held-pass@1"], line["eval/held-pass@2"]) == (0.5, 1.0)
    assert (line["eval/held/response_len/mean"], line["eval/held/own"]) == (4.0, 2.0)


def test_the_last_reward_shard_tells_the_log_function_of_the_whole_iteration(start: Start) -> None:
    run = start(rollout_function_path=f"{HERE}.roll", custom_rollout_log_function_path=f"{HERE}.log_rollout")
    plan = ensure_plan(run, 0)
    for shard in (0, 1):
        roll(run, plan, shard)

    score(run, plan, 1)
    assert user_functions.LOGGED == []
    score(run, plan, 0)

    [(iteration, rewards, extra, seconds)] = user_functions.LOGGED
    assert (iteration, len(rewards), extra) == (0, 8, {"rollout/own": 2.0})
    assert seconds >= 0
    assert lines(run, "rollout") == []  # it took care of it


def test_a_line_of_metrics_is_added_for_each_iteration(start: Start) -> None:
    run = start(rollout_function_path=f"{HERE}.roll", custom_rm_path="tests.stages.rollout.test_function.always_right")
    plan = ensure_plan(run, 0)
    for shard in (0, 1):
        roll(run, plan, shard)
        score(run, plan, shard)

    [line] = lines(run, "rollout")
    assert (line["rollout/raw_reward"], line["rollout/response_len/mean"], line["rollout/own"]) == (1.0, 1.0, 2.0)


def test_a_data_source_goes_on_where_the_iteration_before_left_it(start: Start) -> None:
    run = start(data_source_path=f"{HERE}.Counter", rollout_function_path=f"{HERE}.roll_some", rollout_shards=1)
    first, second = ensure_plan(run, 0), ensure_plan(run, 1)
    roll(run, first)
    made = roll(run, first, force=True)
    score(run, first)
    pretend_to_train(run, first)

    later = roll(run, second)

    assert json.loads((run.data_source_path(0) / "state.json").read_text()) == {"after": 0, "next": 4, "back": 1}
    assert [sample.prompt for sample in samples_of(run, second)] == ["word 4", "word 4"]
    assert [(sample.group_index, sample.index) for sample in samples_of(run, second)] == [(4, 8), (4, 9)]
    assert later.inputs["data_source"] == made.outputs["data_source"]["content"]


def pretend_to_train(run: RunDir, plan: Plan) -> None:
    small = SmallRun(run=run, shards=1, config=read_config(run, 0))
    small.train(plan)
    small.sync(plan)


async def always_right(args: Any, sample: Any, **kwargs: Any) -> float:
    return 1.0
