"""Rows of prompt files. A line that cannot be read is an error that names it; nothing is skipped but blank lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slime_stages.errors import DataError, UsageError
from slime_stages.prompts.arrow import read_arrow_batches, read_parquet_batches
from slime_stages.prompts.names import FILE_SUFFIXES

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a prompt file, and where it stands, for messages."""

    path: Path
    number: int
    """From 1, as `unit` counts."""
    values: dict[str, Any]
    unit: Literal["line", "row"] = "row"

    @property
    def place(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


def read_file(path: Path) -> Iterator[SourceRow]:
    """UsageError for a suffix that is none of ours, DataError for what cannot be read."""
    readers: dict[str, Callable[[Path], Iterator[SourceRow]]] = {
        ".jsonl": read_jsonl,
        ".json": read_json,
        ".parquet": lambda path: number_rows(path, read_parquet_batches(path)),
        ".arrow": lambda path: number_rows(path, read_arrow_batches(path)),
    }
    assert readers.keys() == set(FILE_SUFFIXES)
    if path.suffix not in readers:
        raise UsageError(
            f"prompt data {path} is none of {', '.join(readers)}", hint="convert it, or rename it to what it holds"
        )
    return readers[path.suffix](path)


def number_rows(path: Path, batches: Iterator[list[dict[str, Any]]]) -> Iterator[SourceRow]:
    number = 0
    for batch in batches:
        for values in batch:
            number += 1
            yield SourceRow(path, number, values)


def read_jsonl(path: Path) -> Iterator[SourceRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield SourceRow(path, number, parse_line(path, number, line), "line")


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
    if number == 1 and line.strip() == b"{":
        return f"one object a line: jq -c . {path} > {path.with_suffix('.jsonl')}"
    return f"sed -n {number}p {path}   # then mend or delete the line"


def shorten(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").strip()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def read_json(path: Path) -> Iterator[SourceRow]:
    """One array of rows, which is read in one piece, or an object a line."""
    with path.open("rb") as file:
        first = file.read(1)
        while first.isspace():
            first = file.read(1)
    return read_jsonl(path) if first == b"{" else read_array(path)


def read_array(path: Path) -> Iterator[SourceRow]:
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error})", hint="write an array of objects, or an object a line"
        ) from error
    if not isinstance(rows, list):
        raise DataError(f"{path} holds a {type(rows).__name__}, not an array of rows", hint="write a .jsonl file")
    for number, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise DataError(f"{path}, row {number} is not an object with keys: {shorten(repr(values).encode())}")
        yield SourceRow(path, number, values)
