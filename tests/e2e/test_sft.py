"""Supervised fine-tuning with slime's own names: iterations without an engine, in which the loss falls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_stages.data.sample_table import read_samples
from tests.e2e.runs import mend, new_run
from tests.e2e.stage_calls import Forker

pytestmark = pytest.mark.slow
SUMS = [(1, 2), (3, 4), (5, 1), (2, 2)]


def conversations(path: Path) -> Path:
    """Four, of which the last one is the user's alone."""
    rows = [
        [{"role": "user", "content": f"What is {one} + {other}?"}, {"role": "assistant", "content": str(one + other)}]
        for one, other in SUMS
    ]
    rows[-1].pop()
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


def test_a_model_learns_the_conversations_without_an_engine(tiny_model: Path, tmp_path: Path, forker: Forker) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        conversations(tmp_path / "talks.jsonl"),
        engine=None,
        input_key="messages",
        label_key=None,
        apply_chat_template=False,
        custom_rm_path=None,
        n_samples_per_prompt=1,
        max_null_reward_share=0.25,
        loss_type="sft_loss",
        loss_mask_type="qwen3",
        rollout_function_path="slime.rollout.sft_rollout.generate_rollout",
    )

    mend(run, forker, count=4)

    losses = [json.loads(line)["train/loss"] for line in run.metrics_path("train").read_text().splitlines()]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    samples = [sample for shard in (0, 1) for sample in read_samples(run.shard_path("rollout", 0, shard, 2))]
    assert [sample.response for sample in samples] == ["3<|im_end|>\n", "7<|im_end|>\n", "6<|im_end|>\n", ""]
    assert {tuple(sample.weight_versions) for sample in samples} == {()}
    assert not list(run.root.rglob("engine*.log"))
