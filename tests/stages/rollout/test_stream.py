"""A stream of rollouts: groups that run when a shard is committed go on running, and end in a later one."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_stages import drain
from slime_stages.drain import Drained
from slime_stages.errors import RetryableError, UsageError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.progress import PIPE_VARIABLE
from slime_stages.run.announce import told_on_the_way
from slime_stages.run.journal import Journal
from slime_stages.run.manifest import Manifest, read_manifest
from slime_stages.sample import Sample
from slime_stages.slurm.requeue import progress_of
from slime_stages.stage import StageCall, read_run_plan
from stages.rollout.run import run as run_rollout
from stages.rollout.shard import Shard
from tests.stages.rollout.carried_runs import CarriedRun, account, behaviour, cut_short, start_carried
from tests.stages.rollout.told_to_stop import give_seconds, send

Start = Callable[..., CarriedRun]


@pytest.fixture
def start(tiny_model: Path, tiny_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    def started(**settings: Any) -> CarriedRun:
        made = start_carried(
            tmp_path / "run", tiny_model, tiny_prompts, monkeypatch, **{"rollout_streaming": True, **settings}
        )
        behaviour.seconds = dict.fromkeys(range(100), 0.02)
        return made

    return started


def manifests(made: CarriedRun, count: int) -> list[Manifest]:
    return [read_manifest(made.run.manifest_path("rollout", iteration, 0, 1)) for iteration in range(count)]


def test_a_slow_group_holds_no_iteration_up_and_is_asked_once(start: Start) -> None:
    made = start()
    behaviour.seconds[2] = 1.5

    made.stream(0, 6)

    asked = Counter(index for index, _ in behaviour.asked)
    ended = [2 in made.positions(iteration) for iteration in range(6)]
    assert (asked[4], asked[5]) == (1, 1)
    assert not ended[0]
    assert sum(ended) + made.positions(5, stage="carry").count(2) == 1
    assert [account(manifest)[2] for manifest in manifests(made, 6)] == [4] * 6


def test_every_prompt_ends_once_and_every_manifest_is_what_it_would_be_without_a_stream(start: Start) -> None:
    made = start(over_sampling_batch_size=6)

    made.stream(0, 4)

    kept = [position for iteration in range(4) for position in made.positions(iteration)]
    ended = Counter([*kept, *made.positions(3, stage="carry")])
    assert ended == Counter(range(len(ended)))
    assert ended.keys() >= set(behaviour.positions)  # what is begun at the very end may not be asked yet
    for manifest in manifests(made, 4):
        issued, taken, kept_count, dropped, carried = account(manifest)
        assert issued + taken == kept_count + dropped + carried
    states = [item for i in range(4) for item in iteration_states(made.run, read_run_plan(made.run, i), deep=True)]
    assert [item.state.kind for item in states if item.call.stage == "rollout"] == ["fresh"] * 4


def test_it_says_which_weights_it_waits_for_and_ends_to_be_begun_again(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = start(streaming_wait_seconds=0.3)
    made.roll(0)
    ensure_plan(made.run, 1)
    call = StageCall(stage="rollout", run=made.run.root, iteration=0, shard=0, until=2)

    told: list[Path | None] = []
    monkeypatch.setattr("stages.rollout.inputs.FIRST_REMINDER_SECONDS", 0.1)

    with told_on_the_way(told.append), pytest.raises(RetryableError) as caught:
        run_rollout(call)

    assert caught.value.message.startswith("rollout 1/0 has waited 0.3 s: there is no manifest")
    assert told == [None]  # whoever runs it may see to what is missing
    assert "rollout 1/0 waits: there is no manifest" in capsys.readouterr().err
    assert caught.value.hint == f"slime-stages sync --run {made.run.root} --iter 0"


def test_with_staleness_it_runs_as_far_ahead_as_that_and_no_further(start: Start) -> None:
    made = start(staleness=2, use_tis=True, streaming_wait_seconds=0.3)
    for iteration in range(5):
        ensure_plan(made.run, iteration)
    call = StageCall(stage="rollout", run=made.run.root, iteration=0, shard=0, until=5)

    with pytest.raises(RetryableError, match="rollout 3/0 has waited"):
        run_rollout(call)

    assert [ensure_plan(made.run, iteration).policy_version for iteration in range(5)] == [0, 0, 0, 1, 2]
    assert [account(manifest)[2] for manifest in manifests(made, 3)] == [4, 4, 4]


def test_it_tells_how_many_groups_of_an_iteration_are_kept_and_how_many_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = start(over_sampling_batch_size=6)
    behaviour.seconds = {position: 0.02 * position for position in range(100)}
    reader, writer = os.pipe()
    monkeypatch.setenv(PIPE_VARIABLE, str(writer))

    made.stream(0, 2)

    os.close(writer)
    with os.fdopen(reader) as pipe:
        records = [json.loads(line) for line in pipe]
    first = [record for record in records if record["title"] == "rollout 0/0" and record["figures"]]
    assert (first[0]["done"], first[0]["total"]) == (1, 4)
    assert first[0]["figures"].endswith("in flight 5")  # of six, one is finished
    assert [record["done"] for record in records if record["title"] == "rollout 1/0"][-1] == 4


def test_where_the_settings_change_another_process_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    made = start()
    monkeypatch.setattr("stages.rollout.stream._goes_on", lambda plan, following: following.iteration < 2)

    path = made.stream(0, 4)

    assert path == made.run.manifest_path("rollout", 1, 0, 1)
    assert made.stream(2, 4) == made.run.manifest_path("rollout", 2, 0, 1)
    assert account(manifests(made, 3)[2])[1] == account(manifests(made, 2)[1])[4]


def test_a_stream_that_is_made_already_asks_nothing(start: Start) -> None:
    made = start()
    made.stream(0, 2)
    behaviour.asked.clear()

    assert made.stream(0, 2) == made.run.manifest_path("rollout", 1, 0, 1)
    assert behaviour.asked == []


def test_only_a_run_that_streams_goes_on_to_another_iteration(start: Start) -> None:
    made = start(rollout_streaming=False, partial_rollout=True)

    with pytest.raises(UsageError, match="rollout 0/0 does not go on to another iteration"):
        made.stream(0, 2)


class Killed(BaseException):
    """As a signal that nobody can answer."""


def test_a_stream_that_was_killed_goes_on_from_its_last_hand_over(start: Start) -> None:
    made = start()
    behaviour.seconds[1] = 0.5

    def kill_after_the_first(path: Path | None) -> None:
        assert path is not None
        made.end_iteration(read_manifest(path).iteration)
        raise Killed

    for iteration in range(3):
        ensure_plan(made.run, iteration)
    call = StageCall(stage="rollout", run=made.run.root, iteration=0, shard=0, until=3)
    with pytest.raises(Killed), told_on_the_way(kill_after_the_first):
        run_rollout(call)
    before = read_manifest(made.run.manifest_path("rollout", 0, 0, 1))
    assert progress_of(made.run, call) == 4
    assert 1 in made.positions(0, stage="carry")

    made.stream(0, 3)

    assert read_manifest(made.run.manifest_path("rollout", 0, 0, 1)) == before
    kept = [position for iteration in range(3) for position in made.positions(iteration)]
    assert max(Counter([*kept, *made.positions(2, stage="carry")]).values()) == 1
    assert 1 in [*made.positions(1), *made.positions(2), *made.positions(2, stage="carry")]


async def signalled(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """The twentieth sample that is asked comes with a signal to the process."""
    if len(behaviour.asked) == 19:
        send()
    return await cut_short(args, sample, sampling_params)


@pytest.mark.usefixtures("signals")
def test_a_stream_that_was_told_to_end_goes_on_from_the_tokens_that_it_had(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_seconds(monkeypatch, 0.5)
    made = start(partial_rollout=True, custom_generate_function_path=f"{__name__}.signalled")
    behaviour.seconds = dict.fromkeys((6, 7, 8, 9), 60.0)

    with pytest.raises(Drained) as caught:
        made.stream(0, 3)
    assert caught.value.message.startswith("drained (SIGTERM): 2 groups are in the journal")
    monkeypatch.setattr(drain, "_drain", drain._Drain())
    behaviour.seconds.clear()
    behaviour.asked.clear()
    made.stream(0, 3)

    assert sorted(item for item in behaviour.asked if item[0] in range(12, 20)) == [(i, 3) for i in range(12, 20)]
    assert made.positions(1) == [4, 5, 6, 7]
    assert [sample.metadata["start_rollout_id"] for sample in made.samples(1)[-4:]] == [1] * 4


@given(seed=st.integers(0, 2**32))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whenever_it_is_killed_each_prompt_ends_exactly_once(
    seed: int, tiny_model: Path, tiny_prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        made = start_carried(
            tmp_path_factory.mktemp("stream") / "run",
            tiny_model,
            tiny_prompts,
            patch,
            rollout_streaming=True,
            over_sampling_batch_size=chance.choice((4, 6)),
            staleness=chance.choice((0, 1)),
            use_tis=True,
        )
        behaviour.seconds = {position: chance.choice((0.0, 0.01, 0.05)) for position in range(200)}
        while not killed_at(chance, made, patch):
            pass

    kept = [position for iteration in range(3) for position in made.positions(iteration)]
    ended = Counter([*kept, *made.positions(2, stage="carry")])
    issued = sum(account(manifest)[0] for manifest in manifests(made, 3))
    assert ended == Counter(range(issued))


def killed_at(chance: Random, made: CarriedRun, patch: pytest.MonkeyPatch) -> bool:
    """One attempt, killed at a record or a commit by chance; whether it came to its end."""
    left = [chance.randrange(2, 30)]

    def or_killed(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*args, **named)

        return called

    with patch.context() as inner:
        for target, name in ((Journal, "append"), (Shard, "commit"), (CarriedRun, "end_iteration")):
            inner.setattr(target, name, or_killed(getattr(target, name)))
        try:
            made.stream(0, 3)
        except Killed:
            return False
    return True


async def straddling(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Five tokens, of which other weights wrote the first two."""
    spans = [{"version": "0@a", "start": 0, "end": 2}, {"version": "1@b", "start": 2, "end": 5}]
    told = {"finish_reason": {"type": "stop"}, "weight_version": "1@b", "weight_versions": spans}
    sample.append_response_tokens(None, tokens=[5] * 5, log_probs=[-1.0] * 5, meta_info=told)
    return sample


@pytest.mark.parametrize(("masks", "expected"), [(True, [0, 0, 1, 1, 1]), (False, [1, 1, 1, 1, 1])])
def test_tokens_from_before_a_change_of_weights_are_masked_where_that_is_asked_for(
    start: Start, masks: bool, expected: list[int]
) -> None:
    made = start(
        partial_rollout=True,
        mask_offpolicy_in_partial_rollout=masks,
        custom_generate_function_path=f"{__name__}.straddling",
    )

    made.roll(0)

    assert [sample.loss_mask for sample in made.samples(0)] == [expected] * 8
    assert made.samples(0)[0].weight_versions == ["0", "1"]
