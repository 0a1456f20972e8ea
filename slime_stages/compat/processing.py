"""Tokenizers, processors and images under slime's names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from slime_stages.data.multimodal import png_data_uri
from slime_stages.prompts import tokenizer

PIXELS_PER_PATCH = 14


def load_tokenizer(name_or_path: str | Path, **kwargs: Any) -> Any:
    """The tokenizer of a model folder, loaded once; `kwargs` other than `trust_remote_code` are transformers' own."""
    given = {key: value for key, value in kwargs.items() if key != "trust_remote_code"}
    if not given:
        return _tokenizer(Path(name_or_path))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name_or_path, **kwargs)


def load_processor(name_or_path: str | Path, **_: Any) -> Any:
    """None for a model that takes text alone."""
    return _processor(Path(name_or_path))


def encode_image_for_rollout_engine(image: Any) -> str:
    """A PIL image as an engine's request has it in `image_data`."""
    return png_data_uri(image)


def process_vision_info(prompt: Any, processor: Any) -> dict[str, Any]:
    """The images and videos of chat messages, as `Sample.multimodal_inputs` holds them; needs `qwen_vl_utils`."""
    import qwen_vl_utils

    size = getattr(getattr(processor, "image_processor", None), "patch_size", PIXELS_PER_PATCH)
    images, videos = qwen_vl_utils.process_vision_info(prompt, image_patch_size=size)
    return {"images": images, "videos": videos}


def build_processor_kwargs(multimodal_inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of a processor's call for a sample's media: ids come as lists, what it makes of media as tensors."""
    given: dict[str, Any] = {"text_kwargs": {"return_tensors": None}}
    given |= {kind: {"return_tensors": "pt"} for kind in ("images_kwargs", "videos_kwargs", "audio_kwargs")}
    return {**(multimodal_inputs or {}), **given}


_tokenizer = cache(tokenizer.load_tokenizer)
_processor = cache(tokenizer.load_processor)
