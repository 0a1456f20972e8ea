"""Which iterations' hand-overs a plan takes: each once, and only of rollouts that are done before it begins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import change_config, start_run
from slime_stages.lineage import inheritance
from slime_stages.run.carry import write_groups
from slime_stages.run.manifest import Manifest, commit_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.weights.publish import publish_link
from tests.slime_stages.config.settings import resolved


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "2 + 2?"}\n{"input": "3 + 3?"}\n')
    return {"hf_checkpoint": str(tiny_model), "prompt_data": [str(prompts)], "use_tis": True}


def started(folder: Path, settings: dict[str, Any], **more: Any) -> RunDir:
    """A run that has all weights it may want."""
    run = RunDir(folder / "run")
    start_run(run, resolved(**settings, **more).config)
    for version in range(1, 12):
        publish_link(Path(settings["hf_checkpoint"]), run.weights_path(version))
    return run


def change(run: RunDir, settings: dict[str, Any], **more: Any) -> None:
    change_config(run, resolved(**settings, **more).config, allowed=True)


def taken(run: RunDir, *iterations: int) -> list[tuple[int, ...] | None]:
    return [ensure_plan(run, iteration).carry_from for iteration in iterations]


def test_every_iteration_takes_what_the_one_before_has_left(settings: dict[str, Any], tmp_path: Path) -> None:
    run = started(tmp_path, settings, partial_rollout=True)

    assert taken(run, 0, 1, 2, 3) == [(), (0,), (1,), (2,)]
    assert ensure_plan(run, 3).stream_step == 1


def test_with_staleness_it_takes_from_the_newest_one_that_is_done(settings: dict[str, Any], tmp_path: Path) -> None:
    run = started(tmp_path, settings, partial_rollout=True, staleness=2)

    assert taken(run, 0, 1, 2, 3, 4, 5) == [(), (), (), (0,), (1,), (2,)]
    assert ensure_plan(run, 3).stream_step == 3


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        ((0, 1), [(), (0,), (1,), (2,), (3,), (4,), (5,), (6,)]),
        ((1, 2), [(), (), (0,), (1, 2), (3,), (4,), (5,), (6,)]),
        ((2, 0), [(), (), (), (0, 1, 2), (3,), (4,), (5,), (6,)]),
    ],
)
def test_each_hand_over_is_taken_once_when_staleness_changes(
    settings: dict[str, Any], tmp_path: Path, staleness: tuple[int, int], expected: list[tuple[int, ...]]
) -> None:
    run = started(tmp_path, settings, partial_rollout=True, staleness=staleness[0])
    first = taken(run, 0, 1, 2)
    change(run, settings, partial_rollout=True, staleness=staleness[1])

    assert first + taken(run, 3, 4, 5, 6, 7) == expected


@pytest.mark.parametrize("change_of", [{"rollout_batch_size": 4}, {"rollout_shards": 2}, {"staleness": 2}])
def test_with_staleness_prompts_are_asked_in_turn_once_what_is_asked_at_a_time_has_changed(
    settings: dict[str, Any], tmp_path: Path, change_of: dict[str, int]
) -> None:
    before = {"partial_rollout": True, "staleness": 1, "rollout_batch_size": 8, "rollout_shards": 1}
    run = started(tmp_path, settings, **before)
    first = taken(run, 0, 1, 2)
    change(run, settings, **{**before, **change_of})

    assert first + taken(run, 3, 4) == [(), (), (0,), (1, 2), (3,)]
    assert [ensure_plan(run, iteration).stream_step for iteration in range(5)] == [2, 2, 2, 1, 1]


def test_iterations_before_it_was_turned_on_hand_nothing_over(settings: dict[str, Any], tmp_path: Path) -> None:
    run = started(tmp_path, settings)
    before = taken(run, 0, 1)
    change(run, settings, rollout_quorum=0.5)

    assert before + taken(run, 2, 3) == [None, None, (), (2,)]


def test_what_was_handed_over_is_taken_after_it_was_turned_off(settings: dict[str, Any], tmp_path: Path) -> None:
    run = started(tmp_path, settings, over_sampling_batch_size=6)
    before = taken(run, 0, 1)
    change(run, settings)

    assert before + taken(run, 2, 3) == [(), (0,), (1,), (2,)]


def test_without_it_a_plan_does_not_mention_it(settings: dict[str, Any], tmp_path: Path) -> None:
    plan = ensure_plan(started(tmp_path, settings), 0)

    assert not {b"carry_from", b"stream_step"} & set(plan.to_bytes().replace(b'"', b" ").split())
    assert plan.model_copy(update={"carry_from": (), "stream_step": 1}).digest != plan.digest


def test_in_a_stream_every_iteration_takes_what_the_one_before_has_left_however_old_its_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = started(tmp_path, settings, rollout_streaming=True, staleness=2)

    assert taken(run, 0, 1, 2, 3, 4) == [(), (0,), (1,), (2,), (3,)]
    assert [ensure_plan(run, iteration).policy_version for iteration in range(5)] == [0, 0, 0, 1, 2]
    assert {ensure_plan(run, iteration).stream_step for iteration in range(5)} == {1}


def test_a_stream_that_begins_later_takes_all_that_is_left_and_one_that_ends_leaves_nothing(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = started(tmp_path, settings, partial_rollout=True, staleness=2)
    before = taken(run, 0, 1, 2, 3)
    change(run, settings, partial_rollout=True, staleness=2, rollout_streaming=True)
    streamed = taken(run, 4, 5)
    change(run, settings, partial_rollout=True, staleness=2)

    assert before + streamed == [(), (), (), (0,), (1, 2, 3), (4,)]
    assert taken(run, 6, 7) == [(5,), (6,)]


@given(seed=st.integers(0, 2**32))
@examples(max_examples=25, deadline=None)
def test_no_prompt_is_asked_twice_however_settings_change_and_rollouts_overtake_one_another(
    seed: int, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance, folder = Random(seed), tmp_path_factory.mktemp("run")
    (folder / "prompts.jsonl").write_text('{"input": "2 + 2?"}\n{"input": "3 + 3?"}\n')
    settings = {"hf_checkpoint": str(tiny_model), "prompt_data": [str(folder / "prompts.jsonl")], "use_tis": True}
    run = started(folder, settings, partial_rollout=True, staleness=chance.randrange(3))
    plans = []
    for iteration in range(10):
        if chance.random() < 0.3:
            change(
                run,
                settings,
                partial_rollout=True,
                staleness=chance.randrange(3),
                rollout_batch_size=chance.choice((4, 8)),
                rollout_shards=chance.choice((1, 2)),
                rollout_streaming=chance.random() < 0.2,
            )
        plans.append(ensure_plan(run, iteration))

    asked, made = Counter[int](), set[int]()
    while waiting := [plan for plan in plans if plan.iteration not in made]:
        lowest = waiting[0].iteration
        ready = [p for p in waiting if made.issuperset(p.carry_from or ()) and p.policy_version <= lowest]
        plan = chance.choice(ready)
        asked.update(position for shard in range(plan.shard_count) for position in roll(run, plan, shard, chance))
        made.add(plan.iteration)

    assert set(asked.values()) == {1}


def roll(run: RunDir, plan: Plan, shard: int, chance: Random) -> list[int]:
    """Commit a shard that has asked some more prompts than it keeps; the positions."""
    begins = inheritance(run, plan, shard)
    following = begins.first + chance.randrange(2 * begins.stream.size + 1)
    path = run.shard_path("carry", plan.iteration, shard, plan.shard_count)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = write_groups(path, [], plan=plan, shard=shard, stream=begins.stream, following=following)
    manifest = Manifest(
        kind="rollout", run_id=plan.run_id, iteration=plan.iteration, shard=shard, outputs={"carry": record}
    )
    place = run.manifest_path("rollout", plan.iteration, shard, plan.shard_count)
    place.parent.mkdir(parents=True, exist_ok=True)
    commit_manifest(manifest, place)
    return [begins.stream.position(number) for number in range(begins.first, following)]
