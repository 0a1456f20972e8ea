"""Content digests: xxh3-128 in hex, fast enough to run on every read; and records that carry their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import xxhash

from slime_stages.errors import DataError

CHUNK_BYTES = 1 << 22
SEAL = "seal"
"""Key of a record's digest over all its other values."""


def digest_bytes(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def digest_json(value: Any) -> str:
    """Digest of a JSON value, whatever the order of its keys."""
    return digest_bytes(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with a digest over them: a reader then notices that a byte of the file has changed."""
    return {**values, SEAL: digest_json(values)}


def unsealed(values: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The values without their seal. DataError if it is not theirs; without one they are taken as they are."""
    rest = dict(values)
    seal = rest.pop(SEAL, None)
    if SEAL in values and seal != digest_json(rest):
        raise DataError(f"{where} was altered: its values do not have the digest that it names")
    return rest


def digest_file(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()
