"""Runs whose samples transformers has drawn: 6 prompts x 2 samples, trained in three steps of 4 rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from tests.e2e.runs import new_run
from tests.fakes.rollouts import fake_rollout
from tests.stages.train.attempts import Attempt, outcome

SETTINGS = {
    "rollout_batch_size": 6,
    "rollout_shards": 1,
    "global_batch_size": 4,
    "custom_rm_path": "tests.stages.train.rewards.parity",
}


def run_to_train(folder: Path, model: Path, prompts: Path, *, iteration: int = 0, **flags: Any) -> RunDir:
    """A run whose next call is the training of `iteration`."""
    run = new_run(folder, model, prompts, engine=None, **{**SETTINGS, **flags})
    for number in range(iteration + 1):
        fake_rollout(run, number)
        make(run, "reward", number, shard=0)
        if number < iteration:
            make(run, "train", number)
            make(run, "sync", number)
    return run


def make(run: RunDir, stage: str, iteration: int, shard: int | None = None) -> None:
    """Do a call, in one go; its log is beside the run."""
    call = StageCall(stage=stage, run=run.root, iteration=iteration, shard=shard)
    log = run.root.with_suffix(".log")
    assert outcome(Attempt(call=call, log=log)) == 0, log.read_text()
