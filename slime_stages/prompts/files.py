"""Rows of prompt files. A line that cannot be read is an error that names it; nothing is skipped but blank lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, MissingInputError, UsageError

SLICE = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")
SHOWN_CHARACTERS = 60
PARQUET_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a prompt file, and where it stands, for messages."""

    path: Path
    number: int
    """Line of a `.jsonl` file, else row, from 1."""
    values: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.path}, {'line' if self.path.suffix == '.jsonl' else 'row'} {self.number}"


def read_rows(prompt_data: str) -> Iterator[SourceRow]:
    """The rows of `path` or `path@[a:b]`.

    MissingInputError if there is no such file, UsageError for another suffix, DataError for what cannot be read.
    """
    path, start, stop = split_slice(prompt_data)
    if not path.exists():
        raise MissingInputError(f"there is no prompt data {path}", hint=f"ls {path.parent}; then set --prompt-data")
    rows = iterate_file(path)
    if (start or 0) >= 0 and (stop or 0) >= 0:
        return islice(rows, start, stop)
    return iter(list(rows)[start:stop])


def split_slice(prompt_data: str) -> tuple[Path, int | None, int | None]:
    """(path, start, stop) of `path@[start:stop]`, where each bound may be left out, or of a plain path."""
    match = SLICE.fullmatch(prompt_data)
    if match:
        start, stop = (int(bound) if bound not in ("", "-") else None for bound in match.group("start", "stop"))
        return Path(match["path"]), start, stop
    if "@[" in prompt_data:
        raise UsageError(
            f"the slice of {prompt_data} cannot be read",
            hint="write path@[a:b] with whole numbers; either may be left out",
        )
    return Path(prompt_data), None, None


def iterate_file(path: Path) -> Iterator[SourceRow]:
    readers = {".jsonl": read_jsonl, ".json": read_json, ".parquet": read_parquet}
    if path.suffix not in readers:
        raise UsageError(
            f"prompt data {path} is none of {', '.join(readers)}", hint="convert it, or rename it to what it holds"
        )
    return readers[path.suffix](path)


def read_jsonl(path: Path) -> Iterator[SourceRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield SourceRow(path, number, parse_line(path, number, line))


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise DataError(
            f"{path}, line {number} is not JSON ({error}): {shorten(line)}", hint=line_hint(path, number, line)
        ) from error
    if not isinstance(values, dict):
        raise DataError(
            f"{path}, line {number} is not an object with keys: {shorten(line)}", hint=line_hint(path, number, line)
        )
    return values


def line_hint(path: Path, number: int, line: bytes) -> str:
    if number == 1 and line.lstrip().startswith(b"["):
        return f"one JSON array is a .json file: mv {path} {path.with_suffix('.json')}"
    return f"sed -n {number}p {path}   # then mend or delete the line"


def shorten(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").strip()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def read_json(path: Path) -> Iterator[SourceRow]:
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error})",
            hint=f"one object a line is a .jsonl file: mv {path} {path.with_suffix('.jsonl')}",
        ) from error
    if not isinstance(rows, list):
        raise DataError(f"{path} holds a {type(rows).__name__}, not an array of rows", hint="write a .jsonl file")
    for number, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise DataError(f"{path}, row {number} is not an object with keys: {shorten(repr(values).encode())}")
        yield SourceRow(path, number, values)


def read_parquet(path: Path) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield SourceRow(path, number, values)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet after row {number} ({error})") from error
