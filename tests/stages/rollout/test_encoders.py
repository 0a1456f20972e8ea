"""Engines that encode images for a model's other engines, with the real server."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from PIL import Image

from slime_stages.data.multimodal import png_data_uri
from slime_stages.data.sample_table import read_samples
from slime_stages.errors import UsageError
from slime_stages.launch.plans import ensure_plan
from slime_stages.prompts.tokenizer import load_processor, media_ids
from slime_stages.sample import Sample
from slime_stages.serving.bring import bring_all
from slime_stages.serving.client import EngineClient, GenerateOutput
from slime_stages.serving.fleet import Fleet
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.layout import layout_of
from slime_stages.serving.monitor import MISSED_LOOKS
from slime_stages.stage import StageCall
from slime_stages.weights.publish import publish_link
from slime_stages.weights.record import engine_label
from stages.rollout.engines import vocabulary_size
from stages.rollout.run import run as run_rollout
from tests.e2e.runs import new_run
from tests.fixtures.tiny_vision import (
    QWEN_IMAGE,
    make_image_prompts,
    make_tiny_qwen_vision_model,
    make_tiny_vision_model,
)
from tests.slime_stages.serving.settings import config_of

pytestmark = pytest.mark.slow

QUESTIONS = (["red"], ["blue"], ["red", "blue"])
SAMPLES_PER_PROMPT = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen_vision_model(tmp_path_factory.mktemp("models") / "tiny-qwen-vl")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image_prompts(tmp_path_factory.mktemp("prompts"), QUESTIONS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path, prompts: Path) -> list[Sample]:
    """What one engine gives that encodes the images itself."""
    return rollout(tmp_path_factory.mktemp("alone") / "run", model, prompts)


def engines_file(folder: Path, *worker_types: str) -> Path:
    """A file for `sglang_config` of engines of these types."""
    groups = "".join(f"      - {{worker_type: {kind}, num_gpus: 1}}\n" for kind in worker_types)
    path = folder / "engines.yaml"
    path.write_text(f"sglang:\n  - name: actor\n    server_groups:\n{groups}")
    return path


def rollout(folder: Path, model: Path, prompts: Path, **settings: object) -> list[Sample]:
    run = new_run(
        folder,
        model,
        prompts,
        engine=None,
        input_key="input",
        label_key=None,
        multimodal_keys={"image": "images"},
        rollout_batch_size=len(QUESTIONS),
        n_samples_per_prompt=SAMPLES_PER_PROMPT,
        rollout_shards=1,
        rollout_max_response_len=12,
        **settings,
    )
    ensure_plan(run, 0)
    path = run_rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
    return read_samples(path.with_suffix(".parquet"))


@pytest.mark.usefixtures("verbs")
@pytest.mark.parametrize(
    ("worker_types", "encoding_count"),
    [
        (("encoder", "encoder", "regular"), 8),  # two for a sample with two images, which encoders share out
        (("encoder", "prefill", "decode"), 6),
    ],
    ids=["two-encoders", "encoder-and-pair"],
)
def test_with_encoders_tokens_and_log_probs_are_those_of_one_engine(
    worker_types: Sequence[str], encoding_count: int, alone: list[Sample], model: Path, prompts: Path, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))

    samples = rollout(tmp_path / "run", model, prompts, sglang_config=str(engines_file(tmp_path, *worker_types)))

    assert len(samples) == len(QUESTIONS) * SAMPLES_PER_PROMPT
    assert [sample.tokens for sample in samples] == [sample.tokens for sample in alone]
    assert [sample.rollout_log_probs for sample in samples] == [sample.rollout_log_probs for sample in alone]
    logs = sorted((tmp_path / "run" / "logs").glob("engine-*-encoder-gpu*.log"))
    assert len(logs) == worker_types.count("encoder")
    assert sum(map(encodings, logs)) == encoding_count
    assert set(psutil.Process().children(recursive=True)) <= before


def encodings(log: Path) -> int:
    """How often an encoder was asked for the images of a sample, or for its share of them."""
    return log.read_text().count("/encode completed")


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An encoder, and an engine that answers, with version 0 of the model."""
    folder = tmp_path_factory.mktemp("fleet")
    weights = folder / "000000"
    publish_link(model, weights)
    config = config_of(
        *("--sglang-config", str(engines_file(folder, "encoder", "regular"))),
        *("--multimodal-keys", '{"image": "images"}', "--rollout-health-check-interval", "1"),
        checkpoint=model,
    )
    fleet = Fleet(
        config=config,
        layout=layout_of(config, ()),
        weights=weights,
        label=engine_label(weights, 0),
        log=lambda name: folder / f"{name}.log",
    )
    with fleet:
        yield fleet


async def answer(fleet: Fleet, model: Path, color: str) -> GenerateOutput:
    """The likeliest tokens of a question about an image."""
    text, image = f"{QWEN_IMAGE}Which color?", Image.new("RGB", (70, 40), color)
    file = io.BytesIO()
    image.save(file, "PNG")
    ids = media_ids(load_processor(model), text, [file.getvalue()])
    params = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    media = {"text": text, "image_data": [png_data_uri(image)]}
    async with EngineClient(fleet.served().urls[0], vocab_size=vocabulary_size(model), timeout_seconds=240) as client:
        return await client.generate(ids, params, rid=color, media=media)


async def test_an_encoder_that_dies_comes_back_and_encodes_again(fleet: Fleet, model: Path) -> None:
    encoder, _ = fleet.members
    red, blue = await answer(fleet, model, "red"), await answer(fleet, model, "blue")
    assert red.output_log_probs != blue.output_log_probs
    url, encoded = encoder.engine.url, encodings(encoder.engine.log)

    os.kill(psutil.Process(encoder.engine.pid).children()[0].pid, signal.SIGKILL)
    again = await answer(fleet, model, "red")

    assert (again.output_ids, again.output_log_probs) == (red.output_ids, red.output_log_probs)
    assert encodings(encoder.engine.log) == encoded + 1
    assert encoder.engine.url == url

    pids = [member.engine.pid for member in fleet.members]
    await asyncio.sleep(MISSED_LOOKS + 2)  # at a look a second, what does not answer is started again
    assert [member.engine.pid for member in fleet.members] == pids


def test_engines_with_encoders_keep_the_weights_that_these_have(fleet: Fleet, model: Path, tmp_path: Path) -> None:
    handles = [EngineHandle(url) for url in fleet.updated_urls()]
    publish_link(model, tmp_path / "000001")
    publish_link(make_tiny_qwen_vision_model(tmp_path / "other", seed=1), tmp_path / "000002")

    bring_all(handles, tmp_path / "000001", 1)
    with pytest.raises(UsageError, match="encoded by engines that keep the weights of"):
        bring_all(handles, tmp_path / "000002", 2)

    assert [handle.version() for handle in handles] == [engine_label(tmp_path / "000001", 1)]


def test_a_model_that_sglang_has_no_encoders_for_is_refused(tmp_path: Path) -> None:
    model = make_tiny_vision_model(tmp_path / "gemma")
    config = config_of("--sglang-config", str(engines_file(tmp_path, "encoder", "regular")), checkpoint=model)
    fleet = Fleet(
        config=config, layout=layout_of(config, ()), weights=model, label="0", log=lambda name: tmp_path / f"{name}.log"
    )

    with pytest.raises(UsageError, match="no encoder engines for Gemma3ForConditionalGeneration"):
        fleet.start()

    assert not any(member.engine.is_alive() for member in fleet.members)
