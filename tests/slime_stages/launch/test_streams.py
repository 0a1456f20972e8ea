"""Rollouts beside the local loop: what is waited for, and what becomes of their processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.launch.streams import Streams
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved


def started(folder: Path, **settings: object) -> SmallRun:
    config = resolved(rollout_batch_size=4, n_samples_per_prompt=2, **settings).config
    return SmallRun(run=RunDir(folder / "run"), config=config).start(make_model_folder(folder / "model"))


def first(small: SmallRun) -> StageCall:
    small.plan(0)
    return StageCall(stage="rollout", run=small.run.root, iteration=0, shard=0)


def test_who_waits_for_a_stream_that_fails_gets_its_error(tmp_path: Path) -> None:
    small = started(tmp_path)

    with (
        Streams(run=small.run, until=2) as streams,
        pytest.raises(UsageError, match="does not go on to another") as error,
    ):
        streams.wait_for(first(small), lambda: False)

    assert error.value.hint == "leave --until out, or begin a run with --rollout-streaming"


def test_a_stream_ends_with_the_loop_that_fails(tmp_path: Path) -> None:
    small = started(tmp_path, rollout_streaming=True, staleness=1, use_tis=True)
    small.plan(1)
    for shard in (0, 1):
        small.rollout(small.plan(0), shard)
        small.rollout(small.plan(1), shard)
    log = small.run.log_path("stream-00000")

    with pytest.raises(RuntimeError):
        fail_beside_a_stream(small, log)

    assert "error: drained (SIGTERM)" in log.read_text()


def fail_beside_a_stream(small: SmallRun, log: Path) -> None:
    """Once it waits for the plan of iteration 2."""
    with Streams(run=small.run, until=4) as streams:
        streams.begin(first(small))
        while not log.exists() or "rollout 2/0 waits" not in log.read_text():
            time.sleep(0.1)
        raise RuntimeError
