"""Two attempts at the same call at the same time, as after a requeue: one wins, both end well, all is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import iteration_states
from slime_stages.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.stage import StageCall
from tests.e2e.runs import copy_run, leftovers, manifests, without
from tests.e2e.stage_calls import Forker

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
