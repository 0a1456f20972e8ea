"""How the config wants engines started."""

from __future__ import annotations

import sys

from slime_stages.config import Config
from slime_stages.serving.launch import EngineOptions


def engine_options(config: Config) -> EngineOptions:
    """The options of one engine of a rollout job, or of the warm engine between iterations."""
    serving = config.serving
    tensor_parallel = serving.rollout_num_gpus_per_engine
    return EngineOptions(
        python=str(serving.serving_python or sys.executable),
        seed=config.train.seed,
        flags=dict(serving.sglang),
        layout={"tp_size": tensor_parallel} if tensor_parallel > 1 else {},
        start_timeout_seconds=serving.engine_start_timeout_seconds,
    )
