"""What SGLang says of its tokens is what transformers says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.serving.client import EngineClient

PROMPT = [17, 301, 45, 9, 260, 88, 133]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probs_are_those_of_the_tempered_logits(
    temperature: float, client: EngineClient, tiny_model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    params = {"temperature": temperature, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 5}
    output = await client.generate(PROMPT, params, rid=f"parity-{temperature}")

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + output.output_ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(output.output_ids)[:, None])[:, 0]
    assert torch.tensor(output.output_log_probs) == pytest.approx(expected, abs=1e-4)
