"""What is known of a published version of the weights: each file with its digest. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.digest import digest_json, sealed, unsealed

RECORD = "weights.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a version."""

    bytes: int

    digest: str
    """xxh3-128 of its content, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRecord:
    """One version of the weights, as it lies in its folder."""

    version: int

    files: dict[str, FileRecord]
    """By name; all files of the folder but the record."""

    digest: str
    """Over all names and digests: two versions that are the same to an engine have the same."""

    source: str | None = None
    """The model folder that the files are links into; None if the version holds them itself."""


def engine_label(folder: Path, version: int) -> str:
    """What an engine is told to call these weights: `12@0a1b2c3d`. Their number alone would also fit the weights of
    another run, or those that the version had before it was made again."""
    return f"{version}@{read_weights_record(folder).digest[:8]}"


def make_record(version: int, files: dict[str, FileRecord], *, source: Path | None = None) -> WeightsRecord:
    digest = digest_json({name: file.digest for name, file in files.items()})
    return WeightsRecord(version=version, files=files, digest=digest, source=str(source) if source else None)


def read_weights_record(folder: Path) -> WeightsRecord:
    """The record of a published version."""
    try:
        values: dict[str, Any] = unsealed(orjson.loads((folder / RECORD).read_bytes()), folder / RECORD)
        files = {name: FileRecord(**file) for name, file in values.pop("files").items()}
        return WeightsRecord(files=files, **values)
    except FileNotFoundError as error:
        raise MissingInputError(f"weights {folder} are missing", hint="slime-stages sync") from error
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / RECORD} is not a record of weights: {error}", hint="slime-stages sync --force"
        ) from error


def write_weights_record(folder: Path, record: WeightsRecord) -> None:
    (folder / RECORD).write_bytes(orjson.dumps(sealed(asdict(record)), option=orjson.OPT_INDENT_2))
