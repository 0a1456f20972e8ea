"""A config by the flags that matter, and a layout of it."""

from __future__ import annotations

from pathlib import Path

from slime_stages.config import Config, resolve
from slime_stages.config.flags import split_flags
from slime_stages.serving.layout import Layout, layout_of

CHECKPOINT = "/models/policy"


def config_of(*words: str, checkpoint: Path | str = CHECKPOINT) -> Config:
    base = ["--hf-checkpoint", str(checkpoint), "--prompt-data", "prompts.jsonl", "--rollout-batch-size", "4"]
    return resolve(None, split_flags([*base, *words])).config


def layout(*words: str, gpus: int = 0) -> Layout:
    return layout_of(config_of(*words), tuple(map(str, range(gpus))))
