"""What `--prompt-data` may say, taken apart without opening anything: `SOURCE`, `SOURCE:SPLIT`, each with `@[a:b]`.

A SOURCE is a file, a folder, or the name of a data set in the offline cache, which a config spells `hf:NAME`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from slime_stages.errors import UsageError

HUB = "hf:"
FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
_SLICE = re.compile(r"(?P<source>.+)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]", re.DOTALL)
_WORD = r"[A-Za-z0-9_][\w.-]*"
_NAME = re.compile(rf"(?P<name>{_WORD}(?:/{_WORD})?)(?P<parts>(?::{_WORD}){{0,2}})")


@dataclass(frozen=True, slots=True)
class HubName:
    """`NAME`, `NAME:SPLIT` or `NAME:CONFIG:SPLIT` of a data set."""

    name: str
    config: str | None
    split: str | None


def split_slice(prompt_data: str) -> tuple[str, int | None, int | None]:
    """(source, start, stop) of `source@[start:stop]`, where each bound may be left out, or of a plain source."""
    match = _SLICE.fullmatch(prompt_data)
    if match:
        start, stop = (int(bound) if bound not in ("", "-") else None for bound in match.group("start", "stop"))
        return match["source"], start, stop
    if "@[" in prompt_data:
        raise UsageError(
            f"the slice of {prompt_data} cannot be read",
            hint="write path@[a:b] with whole numbers; either may be left out",
        )
    return prompt_data, None, None


def hub_name(source: str) -> HubName:
    match = _NAME.fullmatch(source.removeprefix(HUB))
    if match is None:
        raise UsageError(f"{source} is no name of a data set", hint=f"{HUB}NAME, {HUB}NAME:SPLIT or a path")
    parts = match["parts"].split(":")[1:]
    return HubName(match["name"], parts[0] if len(parts) == 2 else None, parts[-1] if parts else None)


def split_folder(source: str) -> tuple[str, str | None]:
    """(folder, split) of `FOLDER:SPLIT`; a path that exists as it stands has no split."""
    folder, colon, split = source.rpartition(":")
    if colon and split and "/" not in split and not os.path.exists(source) and os.path.isdir(folder):
        return folder, split
    return source, None


def is_hub_name(text: str) -> bool:
    """Whether a word means a data set's name: it looks like one, and nothing here is called so."""
    source = text.rpartition("@[")[0] or text
    if source.startswith((".", "/", "~", "$")) or source.endswith(FILE_SUFFIXES) or not _NAME.fullmatch(source):
        return False
    return not os.path.exists(source) and not os.path.exists(split_folder(source)[0])
