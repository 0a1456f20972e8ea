"""Two attempts at the same call at the same time, as after a requeue: one wins, both end well, all is whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from tests.e2e.runs import copy_run, leftovers, manifest_path, manifests, without
from tests.e2e.stage_calls import Forker, KillPoint, kill_points, spread

CALLS = [("rollout", 0), ("reward", 0), ("train", None), ("sync", None)]


@pytest.mark.parametrize(("stage", "shard"), CALLS)
def test_of_two_attempts_at_once_one_wins_and_both_end_well(
    finished: RunDir, engine: Engine, forker: Forker, tmp_path: Path, stage: str, shard: int | None
) -> None:
    expected = {name: manifest.content for name, manifest in manifests(finished).items()}
    if stage == "rollout":
        engine.update_weights(finished.weights_path(1), "1")
    for number in range(3):
        run = without(copy_run(finished, tmp_path / str(number)), 1, stage, shard)
        call = StageCall(stage=stage, run=run.root, iteration=1, shard=shard)

        outcomes = forker.run_together([call, call, call])

        results = [outcome.result for outcome in outcomes]
        assert [result and (result.exit_code, result.message) for result in results] == [(0, "")] * 3
        assert {name: m.content for name, m in manifests(run).items()} == {
            name: content for name, content in expected.items() if (run.root / name).exists()
        }
        states = iteration_states(run, ensure_plan(run, 1), deep=True)
        assert [s.state.kind for s in states if (s.call.stage, s.call.shard) == (stage, shard)] == ["fresh"]
        assert leftovers(run) == []


MAKING = ["train", "sync"]
"""What these make lies beside their manifests: a checkpoint, a version of the weights."""


class Race:
    """Attempts at the same call of the finished run's last iteration, each time in a fresh copy of it."""

    def __init__(self, finished: RunDir, stage: str, forker: Forker, folder: Path, *, background: bool) -> None:
        self._finished, self._stage, self._forker, self._folder = finished, stage, forker, folder
        self._background = background
        outcome = forker.run(self._call(self._new("undisturbed")), background=background)
        self.points = [point for point in kill_points(outcome.events) if point.mode == "before" and is_of_stage(point)]
        self.stops = [replace(point, mode="stopped") for point in self.points]

    def complaints(self, number: int, kills: list[KillPoint | None]) -> str:
        """What is wrong after an attempt for each of `kills`; empty if all is well."""
        run = self._new(str(number))
        outcomes = self._forker.run_together([self._call(run)] * len(kills), kills, background=self._background)
        is_killed = any(outcome.is_killed for outcome in outcomes)
        states = [] if is_killed and self._background else [self._state(run)]  # the winner's fork may have died with it
        if is_killed:
            outcomes.append(self._forker.run(self._call(run), background=self._background))
        states.append(self._state(run))
        failed = [str(outcome.result) for outcome in outcomes if outcome.result and outcome.result.exit_code]
        wrong = failed + [state for state in states if state != "fresh"] + leftovers(run)
        shutil.rmtree(run.root)
        return "".join(f"{', '.join(map(str, kills))}: {each}\n" for each in wrong)

    def _new(self, name: str) -> RunDir:
        return without(copy_run(self._finished, self._folder / name), 1, self._stage)

    def _call(self, run: RunDir) -> StageCall:
        return StageCall(stage=self._stage, run=run.root, iteration=1)

    def _state(self, run: RunDir) -> str:
        [state] = [s.state for s in iteration_states(run, ensure_plan(run, 1), deep=True) if s.call == self._call(run)]
        expected = read_manifest(manifest_path(self._finished, self._call(self._finished))).content
        return state.reason or (state.kind if state.manifest and state.manifest.content == expected else "another one")


def is_of_stage(point: KillPoint) -> bool:
    return point.event.role == "stage"


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("stage", MAKING)
@pytest.mark.parametrize("count", [6, pytest.param(10_000, marks=pytest.mark.slow)])
def test_an_attempt_that_stops_anywhere_until_another_has_ended_spoils_nothing(
    finished: RunDir, forker: Forker, tmp_path: Path, stage: str, background: bool, count: int
) -> None:
    race = Race(finished, stage, forker, tmp_path, background=background)

    complaints = [race.complaints(n, [stop, None]) for n, stop in enumerate(spread(race.stops, count))]

    assert not any(complaints), "".join(complaints)


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("stage", MAKING)
def test_of_attempts_that_stop_race_and_are_killed_one_wins_whole(
    finished: RunDir, forker: Forker, tmp_path: Path, stage: str, background: bool
) -> None:
    race = Race(finished, stage, forker, tmp_path, background=background)
    chosen = Random(7)
    pairs = [(chosen.choice(race.stops), chosen.choice(race.points)) for _ in range(60)]

    complaints = [race.complaints(n, [stop, kill, None]) for n, (stop, kill) in enumerate(pairs)]

    assert not any(complaints), "".join(complaints)
