"""How the config wants engines started."""

from __future__ import annotations

import sys

from slime_stages.config import Config
from slime_stages.serving.launch import TOKENS_ONLY_FLAGS, EngineOptions


def answers_are_tokens(config: Config) -> bool:
    """Whether the engine needs no tokenizer: nobody asks it for texts, and none ends a response."""
    return config.rollout.custom_generate_function_path is None and not config.rollout.rollout_stop


def engine_options(config: Config) -> EngineOptions:
    """The options of one engine of a rollout job, or of the warm engine between iterations."""
    serving = config.serving
    tensor_parallel = serving.rollout_num_gpus_per_engine
    return EngineOptions(
        python=str(serving.serving_python or sys.executable),
        seed=config.train.seed,
        flags={**(TOKENS_ONLY_FLAGS if answers_are_tokens(config) else {}), **serving.sglang},
        layout={"tp_size": tensor_parallel} if tensor_parallel > 1 else {},
        start_timeout_seconds=serving.engine_start_timeout_seconds,
    )
