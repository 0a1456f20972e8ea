"""Images go to a real engine of a model that sees them, and into the shard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.stage import StageCall
from stages.rollout.run import run as rollout
from tests.e2e.runs import new_run
from tests.fixtures.tiny_vision import IMAGE_TOKENS, make_image_prompts, make_tiny_vision_model

pytestmark = pytest.mark.slow
COLORS = ("red", "blue")


def test_a_model_answers_by_what_it_sees_and_the_shard_holds_the_images(tmp_path: Path) -> None:
    model = make_tiny_vision_model(tmp_path / "model")
    settings = {"rollout_batch_size": 2, "n_samples_per_prompt": 1, "rollout_shards": 1, "rollout_top_k": 1}
    run = new_run(
        tmp_path / "run",
        model,
        make_image_prompts(tmp_path, [[color] for color in COLORS]),
        engine=None,
        input_key="input",
        label_key=None,
        multimodal_keys={"image": "images"},
        **settings,
    )
    ensure_plan(run, 0)

    path = rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))

    first, second = read_samples(path.with_suffix(".parquet"))
    image_token = json.loads((model / "config.json").read_text())["image_token_index"]
    assert [sample.tokens.count(image_token) for sample in (first, second)] == [IMAGE_TOKENS] * 2
    assert first.tokens[: first.prompt_length] == second.tokens[: second.prompt_length]
    assert first.rollout_log_probs != second.rollout_log_probs  # the likeliest tokens of the same prompt
    seen = [(sample.multimodal_inputs or {})["images"][0] for sample in (first, second)]
    assert [(image.size, image.getpixel((0, 0))) for image in seen] == [
        ((70, 40), (255, 0, 0)),
        ((70, 40), (0, 0, 255)),
    ]
