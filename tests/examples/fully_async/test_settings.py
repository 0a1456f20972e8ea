"""The example of a stream is a run that can be begun."""

from __future__ import annotations

from pathlib import Path

from slime_stages.config import resolve

FOLDER = Path(__file__).parents[3] / "examples" / "fully_async"


def test_its_rollouts_stream_and_training_corrects_for_the_lag() -> None:
    found = resolve(FOLDER / "fully_async.toml")

    rollout = found.config.rollout
    assert (rollout.rollout_streaming, rollout.partial_rollout, rollout.staleness) == (True, True, 1)
    assert rollout.over_sampling_batch_size == 2 * rollout.rollout_batch_size
    assert found.config.algorithm.use_tis
    assert found.warnings == ()
