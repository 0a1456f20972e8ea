"""Whole rollout calls that drop, surpass and hand over groups, iteration after iteration."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from slime_stages import drain
from slime_stages.config.frozen import read_frozen
from slime_stages.drain import Drained
from slime_stages.errors import DataError, MissingInputError, RetryableError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.lineage import journal_of
from slime_stages.reading.lookup import samples_with_index
from slime_stages.run.commit import create_file, replace_file
from slime_stages.sample import Status
from slime_stages.stage import StageCall, read_config, read_run_plan
from tests.stages.rollout.carried_runs import HERE, CarriedRun, Start, account, behaviour

FILTER = "slime_stages.generation.filters.check_reward_nonzero_std"


def test_what_one_iteration_has_left_over_is_kept_by_the_next_which_asks_only_the_rest(start: Start) -> None:
    made = start(over_sampling_batch_size=6)
    first = made.roll(0)
    made.end_iteration(0)
    left = made.positions(0, stage="carry")
    behaviour.asked.clear()

    second = made.roll(1)

    assert account(first) == (6, 0, 4, 0, 2)
    assert ensure_plan(made.run, 1).carry_from == (0,)
    assert set(left) < set(made.positions(1)) | set(made.positions(1, stage="carry"))
    assert not set(behaviour.positions) & {0, 1, 2, 3, 4, 5}
    assert account(second)[1] == 2
    begun = set(range(6)) | set(behaviour.positions)
    ended = [*made.positions(0), *made.positions(1), *made.positions(1, stage="carry")]
    assert sorted(ended) == sorted(begun)


def test_a_rollout_without_any_of_this_has_the_plan_and_the_counts_that_it_always_had(start: Start) -> None:
    made = start()

    manifest = made.roll(0)

    assert manifest.counts == {"issued": 4, "kept": 4, "dropped": 0, "carried": 0, "completed": 8}
    assert sorted(manifest.inputs) == ["plan", "weights"]
    assert manifest.outputs == {}
    assert b"carry" not in made.run.plan_path(0).read_bytes()
    assert not made.run.stage_path("carry", 0).exists()


def test_the_slow_group_is_handed_over_and_asked_anew(start: Start) -> None:
    made = start(rollout_quorum=0.75)
    behaviour.seconds = {2: 60.0}
    first = made.roll(0)
    made.end_iteration(0)
    behaviour.seconds.clear()
    behaviour.asked.clear()

    second = made.roll(1)

    assert (account(first), made.positions(0)) == ((4, 0, 3, 0, 1), [0, 1, 3])
    assert account(second)[1:3] == (1, 4)
    assert [(index, tokens) for index, tokens in behaviour.asked if index in (4, 5)] == [(4, 0), (5, 0)]
    assert {2, 4, 5, 6} == set(made.positions(1))


def test_with_partial_rollout_the_slow_group_goes_on_from_its_tokens(start: Start) -> None:
    made = start(
        rollout_quorum=0.75, partial_rollout=True, custom_generate_function_path=f"{HERE}.cut_short", rollout_seed=1
    )
    behaviour.seconds = {2: 60.0}
    made.roll(0)
    made.end_iteration(0)
    left = made.samples(0, stage="carry")
    behaviour.seconds.clear()
    behaviour.asked.clear()

    made.roll(1)

    assert [(s.status, s.response_length, s.metadata["start_rollout_id"]) for s in left] == [(Status.ABORTED, 3, 0)] * 2
    assert sorted(item for item in behaviour.asked if item[0] in (4, 5)) == [(4, 3), (5, 3)]
    went_on = [sample for sample in made.samples(1) if sample.group_index == 2]
    assert [(s.status, s.response_length, s.weight_versions) for s in went_on] == [
        (Status.COMPLETED, 6, ["w", "w"]),
        (Status.COMPLETED, 6, ["w", "w"]),
    ]
    assert went_on[0].loss_mask == [1] * 6


def test_old_tokens_are_masked_where_that_is_asked_for(start: Start) -> None:
    made = start(
        rollout_quorum=0.75,
        partial_rollout=True,
        mask_offpolicy_in_partial_rollout=True,
        custom_generate_function_path=f"{HERE}.cut_short",
    )
    behaviour.seconds = {2: 60.0}
    made.roll(0)
    made.end_iteration(0)
    behaviour.seconds.clear()

    made.roll(1)

    assert [s.loss_mask for s in made.samples(1) if s.group_index == 2] == [[0, 0, 0, 1, 1, 1]] * 2


def test_at_the_deadline_it_is_content_with_what_there_is(start: Start) -> None:
    made = start(rollout_deadline=2.0)
    behaviour.seconds = {0: 60.0, 2: 60.0}

    assert account(made.roll(0)) == (4, 0, 2, 0, 2)
    assert made.positions(0) == [1, 3]


def test_a_deadline_before_the_first_group_is_to_be_tried_again(start: Start) -> None:
    made = start(rollout_deadline=0.2)
    behaviour.seconds = dict.fromkeys(range(4), 60.0)

    with pytest.raises(RetryableError, match=r"not one group was finished and kept within rollout_deadline = 0\.2 s"):
        made.roll(0)


def test_the_deadline_counts_what_earlier_attempts_have_spent_once_they_have_kept_a_group(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    made = start(rollout_deadline=90.0)
    behaviour.seconds = {0: 60.0, 2: 60.0}
    with monkeypatch.context() as first:
        first.setattr("stages.rollout.deadline.Deadline.stop_time", property(_after_two_groups))
        with pytest.raises(Drained):
            made.roll(0)
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    [journal] = made.run.root.rglob("*.arrows")
    later = time.time() + 100
    os.utime(journal, (later, later))
    behaviour.asked.clear()

    assert account(made.roll(0)) == (4, 0, 2, 0, 2)
    assert (made.positions(0), behaviour.asked) == ([1, 3], [])


def test_a_hand_over_that_is_made_again_otherwise_makes_the_next_iteration_stale(start: Start) -> None:
    made = start(rollout_quorum=0.75)
    behaviour.seconds = {2: 60.0}
    made.roll(0)
    made.end_iteration(0)
    behaviour.seconds.clear()
    made.roll(1)
    assert _rollout_state(made, 1) == "fresh"
    behaviour.seconds = {1: 60.0}

    made.roll(0, force=True)

    assert _rollout_state(made, 1) == "stale: carry/000000/00000 changed since"


def test_without_the_rollout_that_hands_over_the_gate_is_closed_and_names_the_command(start: Start) -> None:
    made = start(over_sampling_batch_size=6)
    made.roll(0)
    made.end_iteration(0)
    made.run.manifest_path("rollout", 0, 0, 1).unlink()

    with pytest.raises(MissingInputError, match="there is no manifest") as caught:
        made.roll(1)

    assert caught.value.hint == f"slime-stages rollout --run {made.run.root} --iter 0 --shard 0"


def test_a_hand_over_that_was_altered_is_refused_with_the_command_that_makes_it_again(start: Start) -> None:
    made = start(over_sampling_batch_size=6)
    made.roll(0)
    made.end_iteration(0)
    made.run.shard_path("carry", 0, 0, 1).write_bytes(b"else")

    with pytest.raises(DataError, match="the manifest of its shard says") as caught:
        made.roll(1)

    assert caught.value.hint == f"slime-stages rollout --run {made.run.root} --iter 0 --shard 0 --force"


def test_another_number_of_shards_takes_over_all_that_was_left(start: Start) -> None:
    made = start(over_sampling_batch_size=6, rollout_shards=2)
    made.roll(0, 0)
    made.roll(0, 1)
    made.end_iteration(0)
    left = [position for shard in (0, 1) for position in made.positions(0, shard, stage="carry", shards=2)]
    config = read_frozen(made.run.config_path)
    one = config.model_copy(update={"rollout": config.rollout.model_copy(update={"rollout_shards": 1})})
    create_file(made.run.config_revision_path(1), one.to_json_bytes())
    replace_file(made.run.config_path, one.to_json_bytes())
    behaviour.asked.clear()

    manifest = made.roll(1)

    assert sorted(manifest.inputs) == ["carry/000000/00000", "carry/000000/00001", "plan", "weights"]
    assert account(manifest)[1] == len(left) == 2
    assert set(left) <= set(made.positions(1)) | set(made.positions(1, stage="carry"))
    assert min(behaviour.positions) > max(left)


def test_the_next_attempt_drops_what_was_dropped_and_asks_nothing_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = start(dynamic_sampling_filter_path=FILTER)
    behaviour.rewards = {1: 1.0}
    monkeypatch.setattr("stages.rollout.shard.Shard._chosen", _killed)
    with pytest.raises(RuntimeError, match="killed"):
        made.roll(0)
    asked = list(behaviour.asked)
    monkeypatch.undo()
    monkeypatch.setattr("stages.rollout.judging.Judge.__call__", _killed)

    manifest = made.roll(0)

    assert behaviour.asked == asked
    assert account(manifest)[2:4] == (4, 1)
    assert 1 not in made.positions(0)


def _killed(*_: object) -> Any:
    raise RuntimeError("killed")


def test_a_sample_is_found_in_the_iteration_that_keeps_it(start: Start) -> None:
    made = start(over_sampling_batch_size=6)
    made.roll(0)
    made.end_iteration(0)
    [one, *_] = made.positions(0, stage="carry")
    made.roll(1)
    plans = [read_run_plan(made.run, iteration) for iteration in (0, 1)]

    found = samples_with_index(made.run, plans, 2 * one)

    assert [(item.plan.iteration, item.index) for item in found] == [(1, 2 * one)]


def _rollout_state(made: CarriedRun, iteration: int) -> str:
    [state] = [
        item.state
        for item in iteration_states(made.run, read_run_plan(made.run, iteration))
        if item.call.stage == "rollout"
    ]
    return state.reason or state.kind


def test_the_journal_keeps_the_tokens_of_unfinished_groups_at_a_drain(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    made = start(partial_rollout=True, custom_generate_function_path=f"{HERE}.cut_short")
    monkeypatch.setattr("stages.rollout.deadline.Deadline.allows_another", lambda self: len(behaviour.asked) < 8)
    monkeypatch.setattr("stages.rollout.deadline.Deadline.stop_time", property(_soon))
    behaviour.seconds = {2: 60.0}

    with pytest.raises(Drained):
        made.roll(0)

    plan = read_run_plan(made.run, 0)
    call = StageCall(stage="rollout", run=made.run.root, iteration=0, shard=0)
    entries = journal_of(made.run, plan, read_config(made.run, 0), call).entries()
    [unfinished] = [entry.samples for entry in entries if not entry.is_finished]
    assert [(s.group_index, s.status, s.response_length) for s in unfinished] == [(2, Status.ABORTED, 3)] * 2
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    monkeypatch.setattr("stages.rollout.deadline.Deadline.allows_another", lambda self: True)
    monkeypatch.setattr("stages.rollout.deadline.Deadline.stop_time", property(lambda self: float("inf")))
    behaviour.seconds.clear()
    behaviour.asked.clear()
    assert account(made.roll(0)) == (4, 0, 4, 0, 0)
    assert sorted(behaviour.asked) == [(4, 3), (5, 3)]


def _soon(self: Any) -> float:
    """The end of the job comes once all eight samples are asked."""
    return 0.0 if len(behaviour.asked) >= 8 else float("inf")


def _after_two_groups(self: Any) -> float:
    return 0.0 if len(self._seconds) >= 2 else float("inf")
