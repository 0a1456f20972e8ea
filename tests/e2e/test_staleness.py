"""Staleness 1: iteration i is generated with the weights of version i - 1, and trained from those of version i."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import calls_of, iteration_states
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from slime_stages.weights.publish import published_versions
from slime_stages.weights.record import engine_label
from tests.e2e.runs import at_version_0, copy_run, manifests, mend, new_run, run_iteration
from tests.e2e.stage_calls import Forker, Outcome

SETTINGS: dict[str, Any] = {
    "staleness": 1,
    "use_tis": True,
    "keep_weights": 1,
    "warn_probs_diff": 1e-5,
    "refuse_probs_diff": 1e-4,
}


@pytest.fixture(scope="module")
def finished_late(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine, forker: Forker
) -> RunDir:
    """Three iterations of the local loop, one after the other; tests work on copies."""
    folder = tmp_path_factory.mktemp("late") / "run"
    run = new_run(folder, tiny_model, tiny_prompts, engine=at_version_0(tiny_engine), **SETTINGS)
    mend(run, forker, count=3)
    return run


@pytest.fixture
def late(finished_late: RunDir, tmp_path: Path, engine: Engine) -> RunDir:
    return copy_run(finished_late, tmp_path / "late")


def contents(run: RunDir) -> dict[str, str]:
    return {name: manifest.content for name, manifest in manifests(run).items()}


def samples(run: RunDir, iteration: int) -> list[Any]:
    read = [sample for shard in (0, 1) for sample in read_samples(run.shard_path("rollout", iteration, shard, 2))]
    return [(sample.tokens, sample.rollout_log_probs, sample.weight_versions) for sample in read]


def versions(run: RunDir) -> list[int]:
    return published_versions(run.weights_path(0).parent)


def metric(run: RunDir, name: str) -> list[float | None]:
    return [manifests(run)[f"iterations/{i:06d}/train/manifest.json"].metrics.get(name) for i in range(3)]


def forced(run: RunDir, forker: Forker, stage: str, iteration: int, shard: int | None = None) -> Outcome:
    return forker.run(StageCall(stage=stage, run=run.root, iteration=iteration, shard=shard, force=True))


def test_samples_come_from_the_version_before_and_every_version_is_trained_from_the_newest(late: RunDir) -> None:
    made = manifests(late)

    assert [ensure_plan(late, iteration).policy_version for iteration in range(3)] == [0, 0, 1]
    assert {name: manifest.policy_version for name, manifest in made.items() if "rollout" in name} == {
        f"iterations/{iteration:06d}/rollout/shard-{shard:05d}-of-00002.json": max(0, iteration - 1)
        for iteration in range(3)
        for shard in range(2)
    }
    for iteration, version in enumerate(("0", "0", "1")):
        assert {v for _, _, found in samples(late, iteration) for v in found} == {version}
        for stage in ("train", "sync"):
            outputs = made[f"iterations/{iteration:06d}/{stage}/manifest.json"].outputs
            assert outputs["policy_version"] == iteration + 1
    assert versions(late) == [0, 2, 3]  # the next iteration generates with 2, the one after it with 3
    states = [item for i in range(3) for item in iteration_states(late, ensure_plan(late, i), deep=True)]
    assert [item.call.title for item in states if not item.state.is_fresh] == []


def test_the_gap_between_engine_and_trainer_is_told_apart_from_what_was_trained_in_between(late: RunDir) -> None:
    drift, gap = metric(late, "train/probs_diff"), metric(late, "train/sampler_probs_diff")

    assert metric(late, "train/staleness") == [0.0, 1.0, 1.0]
    assert gap[0] is None
    assert all(value is not None and value < SETTINGS["warn_probs_diff"] for value in (drift[0], *gap[1:]))
    assert all(value is not None and value > SETTINGS["refuse_probs_diff"] for value in drift[1:])


def test_generating_while_the_iteration_before_is_trained_gives_the_same(late: RunDir, forker: Forker) -> None:
    before = contents(late)
    for folder in (late.iterations_path, late.checkpoints_path, *map(late.weights_path, versions(late)[1:])):
        shutil.rmtree(folder)
    calls = {(call.stage, i): [] for i in range(3) for call in calls_of(late, ensure_plan(late, i))}
    for i in range(3):
        for call in calls_of(late, ensure_plan(late, i)):
            calls[call.stage, i].append(call)
    ahead = [("rollout", 0), ("reward", 0), ("rollout", 1), ("train", 0), ("sync", 0), ("rollout", 2), ("reward", 1)]
    rest = [("reward", 2), ("train", 1), ("train", 2), ("sync", 2), ("sync", 1)]

    for key in (*ahead, *rest):
        for call in calls[key]:
            outcome = forker.run(call)
            assert outcome.result is not None
            assert outcome.result.exit_code == 0, (call.title, outcome.result)

    assert contents(late) == before


def test_with_staleness_0_and_1_the_first_iteration_is_the_same_and_the_second_is_not(
    finished: RunDir, late: RunDir
) -> None:
    assert samples(late, 0) == samples(finished, 0)
    assert [sample[0][:4] for sample in samples(late, 1)] == [sample[0][:4] for sample in samples(finished, 1)]
    assert samples(late, 1) != samples(finished, 1)


def test_training_again_without_the_weights_that_generated_makes_the_same(late: RunDir, forker: Forker) -> None:
    before = contents(late)
    assert not late.weights_path(1).exists()

    outcome = forced(late, forker, "train", 2)

    assert outcome.result is not None
    assert outcome.result.exit_code == 0, outcome.result
    assert contents(late) == before
    assert metric(late, "train/sampler_probs_diff")[2] is None


def test_samples_of_an_engine_with_other_weights_are_refused_in_spite_of_the_lag(
    late: RunDir, engine: Engine, forker: Forker
) -> None:
    run_iteration(late, 3, forker)
    engine.update_weights(late.weights_path(0), engine_label(late.weights_path(2), 2))
    for shard in (0, 1):
        assert forced(late, forker, "rollout", 3, shard).result is not None
        assert forced(late, forker, "reward", 3, shard).result is not None

    outcome = forced(late, forker, "train", 3)

    assert outcome.result is not None
    assert (outcome.result.exit_code, "above refuse_probs_diff" in outcome.result.message) == (65, True)


@pytest.mark.slow
def test_several_trainer_processes_compare_with_the_weights_that_generated_too(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    processes = {"actor_num_gpus_per_node": 2, "tensor_model_parallel_size": 2}
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, **SETTINGS, **processes)

    for iteration in (0, 1):
        run_iteration(run, iteration, forker)

    trained = manifests(run)["iterations/000001/train/manifest.json"]
    assert (trained.metrics["train/sampler_probs_diff"] or 1.0) < SETTINGS["warn_probs_diff"]
    assert (trained.metrics["train/probs_diff"] or 0.0) > SETTINGS["refuse_probs_diff"]


def test_going_on_mends_the_weights_that_the_next_iteration_is_generated_with(late: RunDir, forker: Forker) -> None:
    before = manifests(late)
    shutil.rmtree(late.weights_path(2))

    mend(late, forker, count=1)

    after = manifests(late)
    assert {name for name in before if after[name].started != before[name].started} == {
        "iterations/000001/sync/manifest.json"
    }
    assert {name: after[name].content for name in before} == {name: each.content for name, each in before.items()}
    assert ensure_plan(late, 3).policy_version == 2
    assert versions(late) == [0, 3, 4]
