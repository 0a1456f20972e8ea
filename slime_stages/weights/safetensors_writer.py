"""Write safetensors files tensor by tensor, hashing on the way: no more than one tensor is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import torch
import xxhash
from torch import Tensor

_TYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor that a file is going to hold."""

    name: str

    shape: tuple[int, ...]

    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write_safetensors(path: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor]) -> str:
    """Write the tensors, which come in the order of `specs`; returns the xxh3-128 of the file."""
    state = xxhash.xxh3_128()
    with path.open("wb") as file:
        header = _header(specs)
        state.update(header)
        file.write(header)
        for spec, tensor in zip(specs, tensors, strict=True):
            assert tuple(tensor.shape) == spec.shape, (spec, tensor.shape)
            assert tensor.dtype == spec.dtype, (spec, tensor.dtype)
            content = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
            state.update(content)
            file.write(content)
    return state.hexdigest()


def _header(specs: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for spec in specs:
        end = start + spec.bytes
        entries[spec.name] = {"dtype": _TYPE_NAMES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
        start = end
    text = orjson.dumps(entries)
    text += b" " * (-len(text) % 8)  # readers map the file: data begins at a multiple of 8
    return len(text).to_bytes(8, "little") + text
