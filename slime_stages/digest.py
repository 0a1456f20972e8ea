"""Content digests: xxh3-128 in hex, fast enough to run on every read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import xxhash

CHUNK_BYTES = 1 << 22


def digest_bytes(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def digest_json(value: Any) -> str:
    """Digest of a JSON value, whatever the order of its keys."""
    return digest_bytes(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def digest_file(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()
