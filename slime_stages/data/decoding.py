"""Token ids to text, for people and for rewards; nothing is ever tokenised again from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError

Decoder = Callable[[list[int]], str]


def load_decoder(folder: Path, *, skip_special_tokens: bool = False) -> Decoder:
    """The decoder of a model folder. DataError or MissingInputError if it has none that works.

    `tokenizer.json` is read as it is, in a hundredth of the time that transformers takes to be imported.
    """
    path = folder / "tokenizer.json"
    if path.exists():
        return partial(_fast_tokenizer(path).decode, skip_special_tokens=skip_special_tokens)
    from slime_stages.prompts.tokenizer import load_tokenizer

    return partial(
        load_tokenizer(folder).decode, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )


def _fast_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no type of its own
        raise DataError(f"{path} cannot be read: {error}") from error
