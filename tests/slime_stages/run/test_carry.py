"""Streams of prompt positions that never meet, and hand-overs that are read as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.carry import HandOver, Stream, begun_anew, continued, hand_over_of, read_groups, write_groups
from slime_stages.run.manifest import Manifest
from slime_stages.run.plan import Plan, plan_shards
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status


def plan(iteration: int, *, batch: int = 6, shards: int = 2, step: int = 1, prompts: str = "p") -> Plan:
    return Plan(
        run_id="r",
        iteration=iteration,
        config_revision=0,
        policy_version=iteration,
        prompts_digest=prompts,
        n_samples_per_prompt=1,
        seed=0,
        shuffle=False,
        shards=plan_shards(iteration * batch, batch, shards),
        carry_from=(),
        stream_step=step,
    )


def positions(stream: Stream, numbers: range) -> list[int]:
    return [stream.position(number) for number in numbers]


def test_a_stream_that_runs_ahead_of_nothing_asks_the_slices_of_the_plans() -> None:
    stream = Stream.of(plan(2), 1, base=2)

    assert positions(stream, range(9)) == [15, 16, 17, 21, 22, 23, 27, 28, 29]
    assert [list(range(s.start, s.stop)) for s in (plan(2).shards[1], plan(3).shards[1])] == [
        [15, 16, 17],
        [21, 22, 23],
    ]


def test_with_staleness_1_every_other_iteration_goes_on_with_a_stream() -> None:
    assert positions(Stream.of(plan(1, step=2), 0, base=1), range(6)) == [6, 7, 8, 18, 19, 20]


@given(batch=st.integers(1, 9), shards=st.integers(1, 4), step=st.integers(1, 3), start=st.integers(0, 5))
def test_no_two_streams_share_a_position_and_each_knows_its_own(batch: int, shards: int, step: int, start: int) -> None:
    shards = min(batch, shards)
    streams = [
        Stream.of(plan(iteration, batch=batch, shards=shards, step=step), shard, base=iteration)
        for iteration in range(start, start + step)
        for shard in range(shards)
    ]
    found = [(position, stream) for stream in streams for position in positions(stream, range(30))]

    assert len({position for position, _ in found}) == len(found)
    for stream in streams:
        own = {position: number for number, position in enumerate(positions(stream, range(30)))}
        for position, other in found:
            assert stream.number(position) == (own[position] if other == stream else None)


def hand_over(made: Stream, *, following: int, shard: int = 0) -> HandOver:
    return HandOver(iteration=0, shard=shard, path=Path("x"), digest="", content="", stream=made, next=following)


def test_a_plan_of_the_same_shape_goes_on_with_the_stream() -> None:
    before = Stream.of(plan(0), 1, base=0)

    assert continued(plan(1), 1, plan(0), hand_over(before, following=5)) == before


@pytest.mark.parametrize("other", [{"batch": 8}, {"shards": 3}, {"step": 2}, {"prompts": "q"}])
def test_a_plan_of_another_shape_begins_a_stream_beyond_all_others(other: dict[str, int]) -> None:
    old = [hand_over(Stream.of(plan(0), shard, base=0), following=following) for shard, following in ((0, 7), (1, 4))]
    now = plan(1, **other)  # type: ignore[arg-type]

    assert continued(now, 0, plan(0), old[0]) is None
    made = [begun_anew(now, shard, old) for shard in range(now.shard_count)]
    assert len({stream.base for stream in made}) == 1
    assert min(stream.position(0) for stream in made) >= 13  # positions 0 to 12 may have been asked
    assert (made[0].base - 1) % (now.stream_step or 1) == 0


def test_a_first_stream_begins_with_the_slice_of_its_plan() -> None:
    assert begun_anew(plan(4), 0, []).position(0) == plan(4).shards[0].start


def test_groups_are_read_as_they_were_handed_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    partial = Sample(group_index=7, index=7, tokens=[1, 2, 5], status=Status.ABORTED, weight_versions=["3"])
    partial.response_length, partial.rollout_log_probs, partial.loss_mask = 1, [-0.25], [1]
    groups = [[partial], [Sample(group_index=3, index=3, reward=1.0, status=Status.COMPLETED)]]
    path = run.shard_path("carry", 2, 1, 2)
    path.parent.mkdir(parents=True)
    stream = Stream.of(plan(2), 1, base=0)

    record = write_groups(path, groups, plan=plan(2), shard=1, stream=stream, following=9)
    manifest = Manifest(kind="rollout", run_id="r", iteration=2, shard=1, outputs={"carry": record})
    found = hand_over_of(run, plan(2), 1, manifest)

    assert (found.stream, found.next, found.end) == (stream, 9, 21)
    assert [[vars(s) for s in group] for group in read_groups(found)] == [[vars(s) for s in group] for group in groups]


def test_an_empty_hand_over_is_one_too_and_its_content_tells_how_far_the_stream_has_come(tmp_path: Path) -> None:
    stream = Stream.of(plan(0), 0, base=0)
    records = [
        write_groups(tmp_path / f"{number}.parquet", [], plan=plan(0), shard=0, stream=stream, following=number)
        for number in (3, 4)
    ]

    assert [record["groups"] for record in records] == [0, 0]
    assert records[0]["content"] != records[1]["content"]
    assert records[0]["digest"] == records[1]["digest"]


def test_a_hand_over_that_is_gone_or_altered_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    found = HandOver(
        iteration=0, shard=0, path=path, digest="ab", content="", stream=Stream.of(plan(0), 0, base=0), next=0
    )

    with pytest.raises(MissingInputError, match="is gone"):
        read_groups(found)
    path.write_bytes(b"x")
    with pytest.raises(DataError, match="the manifest of its shard says ab"):
        read_groups(found)


def test_a_manifest_without_a_hand_over_is_refused_where_the_plan_wants_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rollout 2/1 names no hand-over"):
        hand_over_of(RunDir(tmp_path), plan(2), 1, Manifest(kind="rollout", run_id="r", iteration=2, shard=1))
