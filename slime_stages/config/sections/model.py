"""[model]: the weights a run starts from."""

from __future__ import annotations

from typing import ClassVar

from slime_stages.config.types import LocalPath, Section


class Model(Section):
    title: ClassVar[str] = "the weights a run starts from"

    hf_checkpoint: LocalPath
    """Hugging Face folder with config, tokenizer and the first weights; engines and trainer both start from it."""
