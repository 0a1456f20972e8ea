"""What an engine tells of the experts that a sample's tokens went to is asked for, and kept as slime keeps it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from slime_stages.sample import Sample
from slime_stages.serving.client import GenerateOutput
from stages.rollout.ask import set_router_shape
from stages.rollout.generate import default_generate
from tests.slime_stages.config.settings import resolved

SHAPE = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 8}


class Engine:
    """Answers with two tokens, and with the experts of all tokens but the last if it is asked for them."""

    async def generate(self, input_ids: Any, params: Any, *, extra: Any, **unused: Any) -> GenerateOutput:
        told = np.arange((len(input_ids) + 1) * 3 * 2, dtype=np.int32)
        experts = {"routed_experts": base64.b64encode(told.tobytes()).decode()} if extra else {}
        assert extra in ({}, {"return_routed_experts": True})
        return GenerateOutput(
            text="",
            output_ids=[7, 8],
            output_log_probs=[-1.0, -2.0],
            finish_reason="stop",
            meta_info={"finish_reason": {"type": "stop"}, "weight_version": "0", **experts},
            weight_version="0",
        )


async def generated(folder: Path, **settings: Any) -> Sample:
    args = resolved(**settings).config.as_args()
    set_router_shape(args, folder)
    sample = Sample(index=0, group_index=0, tokens=[1, 2, 3])
    requests: Any = SimpleNamespace(new_id=lambda sample: "0", ids=set())
    generate = default_generate([Engine()], lambda ids: "", requests)  # type: ignore[list-item]
    made = await generate(args, sample, {"max_new_tokens": 2})
    assert isinstance(made, Sample)
    return made


async def test_the_engine_is_asked_for_experts_where_training_replays_them(tmp_path: Path) -> None:
    mixture = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, **mixture}))

    sample, plain = await generated(tmp_path, use_rollout_routing_replay=True), await generated(tmp_path)

    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts.shape == (4, 3, 2)
    assert sample.rollout_routed_experts[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert plain.rollout_routed_experts is None
