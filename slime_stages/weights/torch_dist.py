"""Read the model's tensors of a torch_dist checkpoint on the CPU, one at a time: no Megatron, no process group.

Megatron stacks the parameters of all layers (and of all experts) under one key, in chunks, and names the norms as
Transformer Engine does, which fuses them with what follows. Here each parameter has the name that it has in a model of
Megatron's own layers: `decoder.layers.3.pre_mlp_layernorm.weight`.
"""

from __future__ import annotations

import io
import mmap
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from slime_stages.errors import DataError
from slime_stages.weights.checkpoints import check_checkpoint
from slime_stages.weights.mapping.names import FUSED_NORMS

_LAYERS = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.+)")
"""One layer, or all of them stacked; Megatron does not stack layers that differ."""
_STACKED_EXPERTS = re.compile(r"mlp\.experts\.experts\.(.+)")
_OTHER_STATE = re.compile(r"(chained_\d+\.)?optimizer\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one parameter of the model lies."""

    key: str
    """Megatron's key, which several parameters may share."""

    position: tuple[int, ...]
    """Index of the layer, and of the expert, within the key; empty if the key is not stacked."""

    shape: torch.Size

    dtype: torch.dtype


class TorchDistReader:
    """The model of a checkpoint, by parameter name."""

    def __init__(self, checkpoint: Path) -> None:
        check_checkpoint(checkpoint)
        self.checkpoint = checkpoint
        self._metadata = _read_metadata(checkpoint)
        self._files: dict[str, mmap.mmap] = {}
        self._tensors = _stored_tensors(self._metadata)

    def names(self) -> list[str]:
        """All parameters, in the order of the checkpoint."""
        return list(self._tensors)

    def describe(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise DataError(f"{self.checkpoint} holds no parameter {name}")
        return self._tensors[name]

    def read(self, name: str) -> Tensor:
        """The whole parameter, whatever the parallel layout that wrote it."""
        stored = self.describe(name)
        depth = len(stored.position)
        whole = torch.empty(stored.shape, dtype=stored.dtype)
        missing = whole.numel()
        for chunk in self._metadata.state_dict_metadata[stored.key].chunks:  # type: ignore[union-attr]
            inner = _inner_index(stored.position, chunk)
            if inner is None:
                continue
            part = self._read_chunk(stored.key, chunk)[inner]
            if part.shape == whole.shape:
                return part
            window = zip(chunk.offsets[depth:], chunk.sizes[depth:], strict=True)
            whole[tuple(slice(start, start + size) for start, size in window)] = part
            missing -= part.numel()
        if missing:
            raise DataError(f"{self.checkpoint} lacks {missing} values of {name}", hint="rerun the train stage")
        return whole

    def _read_chunk(self, key: str, chunk: Any) -> Tensor:
        info = self._metadata.storage_data[MetadataIndex(key, chunk.offsets)]
        if getattr(info, "transform_descriptors", None):
            raise DataError(f"{self.checkpoint} is stored with {info.transform_descriptors}, which is not supported")
        content = self._open(info.relative_path)[info.offset : info.offset + info.length]
        tensor: Tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return tensor

    def _open(self, name: str) -> mmap.mmap:
        if name not in self._files:
            with (self.checkpoint / name).open("rb") as file:
                self._files[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._files[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _read_metadata(checkpoint: Path) -> Metadata:
    path = checkpoint / ".metadata"
    try:
        with path.open("rb") as file:
            metadata = pickle.load(file)
    except (pickle.UnpicklingError, EOFError, FileNotFoundError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="rerun the train stage of that iteration") from error
    assert isinstance(metadata, Metadata), type(metadata)
    return metadata


def _stored_tensors(metadata: Metadata) -> dict[str, StoredTensor]:
    found = {}
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata) and not _OTHER_STATE.match(key):
            for name, position in _unstacked(key, entry.size):
                shape = entry.size[len(position) :]
                found[name] = StoredTensor(key=key, position=position, shape=shape, dtype=entry.properties.dtype)
    return found


def _unstacked(key: str, size: torch.Size) -> list[tuple[str, tuple[int, ...]]]:
    """The parameters that lie under a key, each with its index."""
    found = _LAYERS.fullmatch(key)
    if found is None:
        return [(key, ())]
    numbered = [(int(found[1]), ())] if found[1] else [(layer, (layer,)) for layer in range(size[0])]
    layers: list[tuple[int, tuple[int, ...]]] = list(numbered)
    in_experts = _STACKED_EXPERTS.fullmatch(found[2])
    if in_experts is None:
        name = FUSED_NORMS.get(found[2], found[2])
        return [(f"decoder.layers.{layer}.{name}", index) for layer, index in layers]
    return [
        (f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.{in_experts[1]}", (*index, expert))
        for layer, index in layers
        for expert in range(size[len(index)])
    ]


def _inner_index(position: tuple[int, ...], chunk: Any) -> tuple[int, ...] | None:
    """Where the parameter is within a chunk of its key; None if it is not in it."""
    inner = tuple(index - start for index, start in zip(position, chunk.offsets, strict=False))
    return inner if all(0 <= index < size for index, size in zip(inner, chunk.sizes, strict=False)) else None
