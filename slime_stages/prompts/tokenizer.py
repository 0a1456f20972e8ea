"""The model's own tokenizer, and its processor where it takes images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slime_stages.data.multimodal import open_image
from slime_stages.errors import DataError, MissingInputError, UsageError


def load_tokenizer(folder: Path) -> Any:
    """transformers' own choice of class: a bare `tokenizer.json` does not say what Llama or Qwen classes add to it."""
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise MissingInputError(f"there is no model folder {folder}", hint="--hf-checkpoint FOLDER, on shared storage")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{folder} holds no tokenizer that can be loaded: {reason}", hint=f"ls {folder}") from error


def load_processor(folder: Path) -> Any:
    """What makes an image's tokens of its place in a text; None for a model that takes text alone."""
    import transformers

    loader: Any = transformers.AutoProcessor
    if not any((folder / name).is_file() for name in ("processor_config.json", "preprocessor_config.json")):
        return None
    try:
        processor = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=True)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the processor of {folder} needs more than is installed: {reason}", hint="pip install torchvision"
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{folder} holds no processor that can be loaded: {reason}", hint=f"ls {folder}") from error
    return processor if getattr(processor, "image_processor", None) is not None else None


def text_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Ids without special tokens added."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return ids


def media_ids(processor: Any, text: str, media: Sequence[bytes]) -> list[int]:
    """Ids of a text with images, as many for each image as the model sees of it."""
    found = processor(text=[text], images=[[open_image(data) for data in media]], add_special_tokens=False)
    return [int(token) for token in found["input_ids"][0]]
