"""With staleness k, iteration i is generated with version max(0, i - k), and trained from version i all the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slime_stages.cli.main import main
from slime_stages.launch.iterate import retain
from slime_stages.launch.plans import ensure_eval_plan, ensure_plan, needed_versions
from slime_stages.launch.start_run import change_config, start_run
from slime_stages.launch.states import iteration_states
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.weights.publish import publish_link, published_versions
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "2 + 2?"}\n{"input": "3 + 3?"}\n')
    return {
        "hf_checkpoint": str(tiny_model),
        "prompt_data": [str(prompts)],
        "eval_prompt_data": ["held", str(prompts)],
        "keep_weights": 1,
        "use_tis": True,
    }


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> RunDir:
    """Of staleness 1; a change of it is `change`."""
    run = RunDir(tmp_path / "run")
    start_run(run, resolved(**settings, staleness=1).config)
    return run


def change(run: RunDir, settings: dict[str, Any], staleness: int) -> None:
    change_config(run, resolved(**settings, staleness=staleness).config, allowed=True)


def publish(run: RunDir, settings: dict[str, Any], *versions: int) -> None:
    for version in versions:
        publish_link(Path(settings["hf_checkpoint"]), run.weights_path(version))


def versions(run: RunDir) -> list[int]:
    return published_versions(run.weights_path(0).parent)


def planned(run: RunDir, *iterations: int) -> list[int]:
    return [ensure_plan(run, iteration).policy_version for iteration in iterations]


@pytest.mark.parametrize(("staleness", "expected"), [(0, [0, 1, 2, 3]), (1, [0, 0, 1, 2]), (3, [0, 0, 0, 0])])
def test_an_iteration_is_generated_with_the_version_so_many_before_its_own(
    settings: dict[str, Any], tmp_path: Path, staleness: int, expected: list[int]
) -> None:
    run = RunDir(tmp_path / "run")
    start_run(run, resolved(**settings, staleness=staleness).config)

    assert planned(run, 0, 1, 2, 3) == expected
    assert [ensure_plan(run, iteration).start_version for iteration in range(4)] == [0, 1, 2, 3]


def test_an_evaluation_is_of_the_version_that_it_names(run: RunDir) -> None:
    plan = ensure_eval_plan(run, 4, "held")

    assert (plan.policy_version, plan.staleness) == (4, 0)


def test_a_changed_staleness_holds_for_iterations_that_are_planned_later(run: RunDir, settings: dict[str, Any]) -> None:
    assert planned(run, 0, 1, 2) == [0, 0, 1]

    change(run, settings, 0)

    assert planned(run, 0, 1, 2, 3, 4) == [0, 0, 1, 3, 4]


def test_a_raised_staleness_never_asks_for_weights_that_are_not_kept(run: RunDir, settings: dict[str, Any]) -> None:
    publish(run, settings, 4, 5)  # 1 to 3 are not kept any more

    change(run, settings, 3)

    assert planned(run, 5, 6, 7, 8, 9) == [4, 4, 4, 5, 6]
    assert planned(run, 3) == [0]


def test_weights_that_are_still_to_be_published_can_be_planned_with(run: RunDir) -> None:
    assert planned(run, 5) == [4]


def test_a_plan_that_was_lost_is_made_again_with_the_version_of_its_rollouts(tmp_path: Path) -> None:
    small = started(tmp_path)
    small.complete(0)
    plan = small.plan(1)
    small.rollout(plan, 0)
    small.run.prompts_manifest_path().parent.mkdir()
    small.run.prompts_manifest_path().write_bytes(b'{"content": "0", "rows": 64, "dropped": 0}')

    small.run.plan_path(1).unlink()
    publish_link(tmp_path / "model", small.run.weights_path(1))
    shutil.rmtree(small.run.weights_path(0))  # without rollouts it would be planned with version 1 now

    assert ensure_plan(small.run, 1) == plan
    assert plan.policy_version == 0


def test_retention_keeps_what_the_iterations_in_the_window_generate_with(run: RunDir, settings: dict[str, Any]) -> None:
    publish(run, settings, 1, 2, 3, 4)

    retain(run, 3)
    assert versions(run) == [0, 3, 4]
    assert needed_versions(run, 4) == {3, 4}

    publish(run, settings, 5)
    retain(run, 4)
    assert versions(run) == [0, 4, 5]


def test_retention_keeps_what_plans_say_whatever_the_config_says_since(run: RunDir, settings: dict[str, Any]) -> None:
    publish(run, settings, 1, 2, 3)
    assert planned(run, 4, 5) == [3, 4]
    change(run, settings, 0)
    publish(run, settings, 4)

    retain(run, 3)

    assert needed_versions(run, 4) == {3, 4}
    assert versions(run) == [0, 3, 4]


def started(tmp_path: Path) -> SmallRun:
    config = resolved(rollout_batch_size=4, n_samples_per_prompt=2, rollout_shards=2, staleness=1).config
    return SmallRun(run=RunDir(tmp_path / "small"), config=config).start(make_model_folder(tmp_path / "model"))


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    """Of staleness 1, iterations 0 to 3 complete."""
    small = started(tmp_path)
    for iteration in range(4):
        small.complete(iteration)
    return small


def not_fresh(small: SmallRun) -> dict[str, str]:
    found = [item for iteration in range(4) for item in iteration_states(small.run, small.plan(iteration))]
    return {item.call.title: item.state.reason for item in found if not item.state.is_fresh}


def made_otherwise(small: SmallRun, stage: str, iteration: int) -> None:
    """As if the stage had been run again and had made something else."""
    path = small.run.manifest_path(stage, iteration)
    path.write_bytes(read_manifest(path).model_copy(update={"content": "other"}).to_bytes())


def test_other_samples_make_stale_what_was_made_of_them(small: SmallRun) -> None:
    plan = small.plan(1)

    small.rollout(plan, 0, samples=made_up_samples(plan, 0, word="other"), force=True)

    assert not_fresh(small) == {
        "reward 1/0": "stale: rollout changed since",
        "train 1": "stale: rollout/00000 changed since",
    }


def test_another_policy_makes_stale_what_was_trained_from_it(small: SmallRun) -> None:
    made_otherwise(small, "train", 1)

    assert not_fresh(small) == {
        "sync 1": "stale: train changed since",
        "train 2": "stale: policy changed since",
    }


def test_other_weights_make_stale_the_samples_of_the_iteration_after_the_next(small: SmallRun) -> None:
    made_otherwise(small, "sync", 1)

    assert not_fresh(small) == {
        "rollout 3/0": "stale: weights changed since",
        "rollout 3/1": "stale: weights changed since",
    }


def test_people_are_told_both_versions(small: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run", str(small.run.root), "--iter", "0"]) == 0
    assert "iteration 0: generated and trained from weights 0, config" in capsys.readouterr().out

    assert main(["status", "--run", str(small.run.root), "--iter", "3"]) == 0
    assert "iteration 3: generated with weights 2, trained from 3, config" in capsys.readouterr().out
