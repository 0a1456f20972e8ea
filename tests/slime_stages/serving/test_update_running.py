"""New weights in the midst of requests: none is lost, and each answer says which version wrote which of its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.sample import Sample, Status
from slime_stages.serving.bring import bring_running
from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine
from slime_stages.weights.publish import publish_link
from slime_stages.weights.record import engine_label
from tests.fixtures.tiny_model import make_tiny_model

PROMPT, LENGTH = [5, 6, 7], 400


async def test_requests_in_flight_go_on_under_the_new_weights_with_the_log_probs_of_these(
    engine: Engine, client: EngineClient, tiny_model: Path, tmp_path: Path
) -> None:
    for version, model in enumerate((tiny_model, make_tiny_model(tmp_path / "other", seed=1))):
        publish_link(model, tmp_path / f"{version:06d}")
    engine.update_weights(tmp_path / "000000", engine_label(tmp_path / "000000", 0))
    params = {"max_new_tokens": LENGTH, "temperature": 1.0, "ignore_eos": True, "sampling_seed": 7}
    asked = [asyncio.ensure_future(client.generate(PROMPT, params, rid=f"running-{i}")) for i in range(3)]
    while await asyncio.to_thread(engine.request_count) < 3:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)

    await asyncio.to_thread(bring_running, [engine], tmp_path / "000001", 1)
    answers = await asyncio.gather(*asked)
    await asyncio.to_thread(bring_running, [engine], tmp_path / "000000", 0)

    assert engine.version() == engine_label(tmp_path / "000001", 1)  # a newer one of the run stays
    for answer in answers:
        sample = Sample(tokens=list(PROMPT))
        sample.append_response_tokens(
            None, tokens=answer.output_ids, log_probs=answer.output_log_probs, meta_info=answer.meta_info
        )
        (old, _, change), (new, _, end) = sample.metadata[SPANS_KEY]
        assert (sample.status, sample.weight_versions) == (Status.TRUNCATED, ["0", "1"])
        assert (old, new, end) == ("0", "1", LENGTH)
        assert 0 < change < LENGTH
        expected = [
            *log_probs(tmp_path / "000000", sample.tokens)[:change],
            *log_probs(tmp_path / "000001", sample.tokens)[change:],
        ]
        assert sample.rollout_log_probs == pytest.approx(expected, abs=1e-3)


def log_probs(folder: Path, tokens: Sequence[int]) -> Any:
    """Of the response, as transformers gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[len(PROMPT) :])[:, None])[:, 0].tolist()
