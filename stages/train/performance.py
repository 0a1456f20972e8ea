"""How fast an iteration was trained, and in how much memory, under slime's keys. Differs from attempt to attempt."""

from __future__ import annotations

import resource
from typing import Any

import torch

from slime_stages.stage import Stage
from stages.train.batch import IterationBatch
from stages.train.steps import Steps
from stages.train.work import sample_flops

PARTS = {"read": "data_preprocess", "load": "load_model", "steps": "actor_train", "save": "save_model"}
"""Parts of the stage's work, and slime's names of them."""
PASSES = {True: 3, False: 1}
"""A backward pass costs two forward passes."""


def performance(stage: Stage, data: IterationBatch, steps: Steps, model: Any) -> dict[str, float | None]:
    """Of this process; `model` is Megatron's config."""
    lengths, seconds = data.batch.total_lengths, max(stage.seconds.get("steps", 0.0), 1e-3)
    trained = steps.step_of >= 0
    passes = [PASSES[bool(each)] for each in steps.backward[trained]]
    flops = float((sample_flops(lengths[trained], model) * passes).sum())
    per_process = flops / seconds / stage.config.train.process_count
    return {
        **{f"perf/{name}_time": stage.seconds[part] for part, name in PARTS.items() if part in stage.seconds},
        "perf/actor_train_tok_per_s": float(lengths[trained].sum()) / seconds,
        "perf/actor_train_tflops": per_process / 1e12,
        "perf/peak_memory_gb": peak_bytes() / 1e9,
    }


def peak_bytes() -> int:
    """Most that this process has held: on its GPU, or else of the machine's memory."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
