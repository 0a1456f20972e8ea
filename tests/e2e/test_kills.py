"""Every stage is killed at every kind of point; the same call then goes on, and nothing tells the difference."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import calls_of
from slime_stages.run.manifest import check_data, read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.serving.registry import register_engine
from slime_stages.stage import StageCall
from slime_stages.weights.outputs import check_outputs
from tests.e2e.runs import copy_run, leftovers, manifest_path, new_run, without
from tests.e2e.stage_calls import ROOT, Event, Forker, KillPoint, kill_points, spread


class Attempts:
    """Kills a call at chosen points, each time in a fresh copy of the run, and runs it again."""

    def __init__(
        self, before: RunDir, call: StageCall, forker: Forker, folder: Path, *, background: bool = True
    ) -> None:
        self._before, self._call, self._forker, self._folder = before, call, forker, folder
        self._background = background
        undisturbed = self._copy("undisturbed")
        outcome = forker.run(self._in(undisturbed), background=background)
        assert outcome.result is not None
        assert outcome.result.exit_code == 0, outcome.result
        self.points = kill_points(outcome.events)
        self._expected = self._found(undisturbed)

    def complaints(self, points: list[KillPoint]) -> str:
        """What is wrong after a kill and a second attempt, one a line; empty if all is well."""
        return "\n".join(self._complaints(points))

    def first(self, name: str) -> KillPoint:
        """Before the first event of a name."""
        return next(point for point in self.points if point.event.name == name)

    def _complaints(self, points: list[KillPoint]) -> Iterator[str]:
        for number, point in enumerate(points):
            run = self._copy(f"{number:03d}")
            killed = self._forker.run(self._in(run), point, background=self._background)
            if point.event.role == "stage" and not killed.is_killed:
                yield f"{point}: was not reached"
                continue
            again = self._forker.run(self._in(run), background=self._background)
            if again.result is None or again.result.exit_code != 0:
                yield f"{point}: the second attempt ends with {again.result or again.signal}"
                continue
            if survivors := killed.survivors + again.survivors:
                yield f"{point}: left processes: {survivors}"
            if remains := leftovers(run):
                yield f"{point}: left {remains}"
            found = self._found(run)
            for what, expected in self._expected.items():
                if found[what] != expected:
                    yield f"{point}: {what}: {found[what]}, not {expected}"
            shutil.rmtree(run.root)

    def _copy(self, name: str) -> RunDir:
        return copy_run(self._before, self._folder / name)

    def _in(self, run: RunDir) -> StageCall:
        return StageCall(stage=self._call.stage, run=run.root, iteration=self._call.iteration, shard=self._call.shard)

    def _found(self, run: RunDir) -> dict[str, object]:
        """What must be the same after any kill: the commit, whole, and which files there are."""
        call = self._in(run)
        manifest = read_manifest(manifest_path(run, call))
        if manifest.data is not None:
            check_data(manifest_path(run, call), manifest)
        check_outputs(run, manifest)
        stages = run.iteration_path(call.iteration)
        folders = (stages / call.stage, run.checkpoints_path, run.weights_path(0).parent)
        paths = [path for folder in folders for path in folder.rglob("*") if "superseded" not in path.parts]
        return {
            "content": manifest.content,
            "rows": (manifest.rows, manifest.counts),
            "inputs": manifest.inputs,
            "files": sorted(str(path.relative_to(run.root)) for path in paths),
            "iterations in the metrics": iterations_of_metrics(run),
        }


def iterations_of_metrics(run: RunDir) -> set[int]:
    path = run.metrics_path("train")
    lines = path.read_text().splitlines() if path.exists() else []
    return {json.loads(line)["iteration"] for line in lines}


CALLS = {"rollout": (0, 0), "reward": (1, 1), "train": (1, None), "sync": (1, None)}
"""Iteration and shard of the call that is killed; the run is taken back to the time before it."""


@pytest.mark.parametrize("stage", CALLS)
def test_a_killed_stage_goes_on_and_ends_as_if_nothing_had_been(
    run: RunDir, forker: Forker, tmp_path: Path, stage: str
) -> None:
    attempts = attempts_at(stage, run, forker, tmp_path)

    complaints = attempts.complaints(spread(attempts.points, 14))

    assert not complaints, complaints


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("stage", CALLS)
def test_a_stage_may_be_killed_anywhere(
    run: RunDir, forker: Forker, tmp_path: Path, stage: str, background: bool
) -> None:
    attempts = attempts_at(stage, run, forker, tmp_path, background=background)

    complaints = attempts.complaints(attempts.points)

    assert not complaints, complaints


def attempts_at(stage: str, run: RunDir, forker: Forker, folder: Path, *, background: bool = True) -> Attempts:
    iteration, shard = CALLS[stage]
    call = StageCall(stage=stage, run=run.root, iteration=iteration, shard=shard)
    return Attempts(without(run, iteration, stage), call, forker, folder, background=background)


def test_a_group_that_is_journalled_is_not_asked_again(run: RunDir, forker: Forker, tmp_path: Path) -> None:
    attempts = attempts_at("rollout", run, forker, tmp_path)
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0)

    killed = forker.run(call, attempts.first("done"))
    again = forker.run(call)

    assert killed.is_killed
    first, rest = journalled(killed.events), journalled(again.events)
    assert first >= 1  # a second one may be finished when the first is told
    assert first + rest == 2
    assert read_manifest(manifest_path(run, call)).rows == 4


def test_an_engine_ends_with_the_rollout_that_started_it_and_the_next_attempt_samples_the_same(
    run: RunDir, tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    cold = new_run(tmp_path / "cold", tiny_model, tiny_prompts, engine=None)
    ensure_plan(cold, 0)
    warm = copy_run(cold, tmp_path / "warm")
    register_engine(warm.engines_path, "warm", url=engine.url, pid=engine.pid)
    call = StageCall(stage="rollout", run=cold.root, iteration=0, shard=0)
    undisturbed = forker.run(replace(call, run=warm.root))
    first_group = next(point for point in kill_points(undisturbed.events) if point.event.name == "done")

    killed = forker.run(call, first_group)
    again = forker.run(call)

    assert killed.is_killed
    assert "engine-000000-00000.log" in [path.name for path in cold.log_path("x").parent.iterdir()]
    assert killed.survivors == again.survivors == []  # the server and all its processes are gone within seconds
    assert journalled(killed.events) in (1, 2)  # a second one may be finished when the first is told
    contents = [read_manifest(manifest_path(each, call)).content for each in (cold, warm)]
    assert contents[0] == contents[1]


def test_trainer_processes_end_with_the_stage_that_started_them(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, actor_num_gpus_per_node=2)
    for call in calls_of(run, ensure_plan(run, 0)):
        if call.stage in ("rollout", "reward"):
            forker.run(call)
    words = [sys.executable, "-m", "stages.train", "--run", str(run.root), "--iter", "0"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as stage:
        workers: list[psutil.Process] = []
        while len(workers) < 2:
            assert stage.poll() is None
            time.sleep(0.2)
            below = psutil.Process(stage.pid).children(recursive=True)
            workers = [process for process in below if str(run.root) in " ".join(process.cmdline()[2:])]
        stage.kill()

    _, alive = psutil.wait_procs([*below, *workers], timeout=15)

    assert alive == []


def journalled(events: list[Event]) -> int:
    """Groups that an attempt has recorded."""
    return sum(event.name == "fsync" and "/.journal-00000/" in event.what for event in events)
