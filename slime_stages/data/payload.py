"""Values that JSON cannot hold (images, arrays, bytes) as JSON text plus a list of binary payloads, and back.

A payload stands in the JSON as `{"$payload": i, "as": "png" | "npy" | "bytes"}`. What comes back: tensors as numpy
arrays, tuples as lists, keys as text, NaN and infinities outside arrays as None.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson

from slime_stages.errors import DataError

_JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def dump_json(value: Any, *, what: str) -> str:
    """Plain JSON text of `value`. DataError naming `what` if it holds something that JSON cannot."""
    try:
        return orjson.dumps(value, default=_as_list, option=_JSON_OPTIONS).decode()
    except TypeError as error:
        raise DataError(f"{what} cannot be stored as JSON: {error}") from error


def pack(value: Any, payloads: list[bytes], *, what: str) -> str:
    """JSON text of `value`; what JSON cannot hold is appended to `payloads`."""
    try:
        packed = _packed(value, payloads)
    except (TypeError, ValueError, OSError) as error:
        raise DataError(f"{what} cannot be stored: {error}") from error
    return dump_json(packed, what=what)


def unpack(text: str, payloads: list[bytes]) -> Any:
    return _unpacked(orjson.loads(text), payloads)


def _packed(value: Any, payloads: list[bytes]) -> Any:
    if isinstance(value, dict):
        return {key: _packed(item, payloads) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(item, payloads) for item in value]
    if isinstance(value, bytes):
        return _placed(value, "bytes", payloads)
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return _placed(_saved(lambda file: np.save(file, value, allow_pickle=False)), "npy", payloads)
    if hasattr(value, "save") and hasattr(value, "convert"):  # a PIL image
        return _placed(_saved(lambda file: value.save(file, format="PNG")), "png", payloads)
    return value


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.tolist()
    raise TypeError(f"type {type(value).__name__} has no JSON form")


def _placed(data: bytes, kind: str, payloads: list[bytes]) -> dict[str, Any]:
    payloads.append(data)
    return {"$payload": len(payloads) - 1, "as": kind}


def _saved(save: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def _unpacked(value: Any, payloads: list[bytes]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, payloads) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"$payload", "as"}:
        return {key: _unpacked(item, payloads) for key, item in value.items()}
    data = payloads[value["$payload"]]
    if value["as"] == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    if value["as"] == "png":
        from PIL import Image

        return Image.open(io.BytesIO(data))
    return data
