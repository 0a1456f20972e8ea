"""While a step takes its time, it is told which micro-batch it is at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slime_stages.progress import PIPE_VARIABLE
from tests.stages.train.batches import settings, train
from tests.stages.train.megatron.tiny_models import save_tiny_model


def test_micro_batches_are_counted_before_the_first_step_and_within_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(num_steps_per_rollout=2, micro_batch_size=2, entropy_coef=0.01)
    model = save_tiny_model("qwen3", tmp_path / "model")
    reader, writer = os.pipe()
    monkeypatch.setenv(PIPE_VARIABLE, str(writer))

    train(model, config)

    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    at = [(record["done"], record["figures"].split()[2]) for record in told if "micro batch" in record["figures"]]
    log_probs = [(0, "1/5"), (0, "2/5"), (0, "3/5"), (0, "4/5"), (0, "5/5")]
    first_step = [(0, "5/5"), (0, "1/2"), (0, "2/2"), (0, "1/1"), (1, "1/1")]  # the last sample needs no backward pass
    second_step = [(1, "1/3"), (1, "2/3"), (1, "3/3"), (2, "3/3")]
    assert at == log_probs + first_step + second_step
    assert {record["total"] for record in told} == {2}
