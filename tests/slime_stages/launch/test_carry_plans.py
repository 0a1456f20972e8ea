"""Which iterations' hand-overs a plan takes: each once, and only of rollouts that are done before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import change_config, start_run
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
        ((0, 1), [(), (0,), (1,), (), (2,), (3,), (4,), (5,)]),
        ((0, 2), [(), (0,), (1,), (), (), (2,), (3,), (4,)]),
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
