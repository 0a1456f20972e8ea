"""An iteration is scored again under another name and trained on that, by the command line and with a real trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slime_stages.run.manifest import read_manifest
from slime_stages.sample import Sample
from slime_stages.weights.checkpoints import complete_iterations
from tests.e2e.test_pipeline import shell
from tests.stages.train.rewards import parity
from tests.stages.train.small_runs import run_to_train

pytestmark = pytest.mark.slow


def opposite(args: Any, sample: Sample) -> float:
    """Where the run's own reward is 1, this one is 0."""
    return 1.0 - parity(args, sample)


def test_the_policy_is_trained_on_the_reward_that_is_named(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    run = run_to_train(tmp_path / "run", tiny_model, tiny_prompts)
    own = pq.read_table(run.shard_path("reward", 0, 0, 1))["reward"].to_pylist()
    scorer = f"{opposite.__module__}.{opposite.__name__}"

    scored = shell(f"slime-stages reward --run {run.root} --iter 0 --as opposite --custom-rm-path {scorer}")
    trained = shell(f"slime-stages train --run {run.root} --iter 0 --reward opposite")

    assert (scored.returncode, trained.returncode) == (0, 0), (scored.stderr, trained.stderr)
    samples = pq.read_table(run.train_samples_path(0)).to_pydict()
    assert samples["raw_reward"] == [1.0 - reward for reward in own]
    pairs = list(zip(own[::2], own[1::2], strict=True))
    assert any(first != second for first, second in pairs)
    advantages = zip(samples["advantage"][::2], samples["advantage"][1::2], strict=True)
    for (first, second), (of_first, of_second) in zip(pairs, advantages, strict=True):
        assert (of_first > of_second) == (first < second)  # the better of two by its own reward is now the worse one
    assert sorted(read_manifest(run.manifest_path("train", 0)).inputs) == [
        "policy",
        "reward-opposite/00000",
        "rollout/00000",
    ]
    assert complete_iterations(run.checkpoints_path) == [1]
