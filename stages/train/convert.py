"""Turn a Hugging Face folder into a torch_dist checkpoint, which a trainer of any parallel layout loads.

The model is built by one process, in the processor's memory.
"""

from __future__ import annotations

import os
from pathlib import Path

from slime_stages.progress import Progress
from slime_stages.run.commit import replace_file
from slime_stages.weights.checkpoints import RELEASE, TRACKER
from slime_stages.weights.export import config_dtype
from slime_stages.weights.mapping.layout import read_huggingface_config, weight_layout


def convert_to_torch_dist(source: Path, target: Path, *, dtype: str | None) -> None:
    """Write `target/release` and a tracker that names it, as Megatron has it for converted weights. Without `dtype` the
    source's config decides."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from stages.train.megatron import checkpoint, parallel
    from stages.train.megatron.model import build_model
    from stages.train.megatron.settings import TrainerSettings

    config = read_huggingface_config(source)
    chosen = dtype or config_dtype(config)
    settings = TrainerSettings(
        dtype="bfloat16" if chosen == "bfloat16" else "float32",
        mtp_num_layers=weight_layout(config).prediction_count or None,
    )
    with Progress(f"convert {source.name}", total=2, unit="parts") as progress:
        parallel.initialize(settings)
        [module] = build_model(source, settings, parallel.device())
        progress.advance()
        checkpoint.save_weights(module, target / RELEASE)
        replace_file(target / TRACKER, RELEASE.encode())
        progress.advance()
