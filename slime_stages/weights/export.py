"""Turn a torch_dist checkpoint into a Hugging Face folder: the template's files, the checkpoint's weights.

Reads and writes tensor by tensor, on the CPU, without Megatron-Core.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from slime_stages.errors import DataError, UsageError
from slime_stages.run.digest import digest_file
from slime_stages.weights.hf_folder import INDEX, SINGLE_FILE, check_hf_folder, other_files
from slime_stages.weights.mapping.layout import WeightLayout, read_huggingface_config, weight_layout
from slime_stages.weights.mapping.reader import HuggingFaceReader
from slime_stages.weights.mapping.tensors import to_huggingface
from slime_stages.weights.safetensors_writer import TensorSpec, write_safetensors
from slime_stages.weights.torch_dist import TorchDistReader

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OVER_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
FROM_TEMPLATE = "the template"
"""Stands in place of a parameter's name for tensors that no checkpoint changes."""
_DERIVED = ("rotary_emb.inv_freq",)
"""Buffers that old checkpoints carry and that models compute themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written."""

    digests: dict[str, str]
    """xxh3-128 of every file, by name."""

    tensor_count: int

    weight_bytes: int
    """Of all tensors, without headers."""

    dtype: str


def export_hf(
    checkpoint: Path,
    template: Path,
    target: Path,
    *,
    max_shard_bytes: int = 5 << 30,
    dtype: str | None = None,
    on_tensor: Callable[[], object] = lambda: None,
) -> ExportReport:
    """Fill the folder `target`, which must be empty or absent. Without `dtype` the template's config decides.
    `on_tensor` is called after each tensor.

    Nothing here is durable or atomic: hand an `unpublished_folder`, then publish it.
    """
    check_hf_folder(template)
    target.mkdir(parents=True, exist_ok=True)
    assert not any(target.iterdir()), target
    config = read_huggingface_config(template)
    with TorchDistReader(checkpoint) as reader, HuggingFaceReader(template) as model:
        export = _Export(reader, model, config, dtype, on_tensor)
        export.keep_prediction_layers()
        export.check_names()
        shards = _split_shards(export.specs, max_shard_bytes)
        digests = {name: export.write(target / name, specs) for name, specs in shards.items()}
    if len(shards) > 1:
        _write_index(target, shards)
    for file in other_files(template):
        shutil.copyfile(file, target / file.name)
    if export.dtype_name != config_dtype(config):
        _write_json(target / "config.json", {**config, "dtype": export.dtype_name})
    digests |= {path.name: digest_file(path) for path in target.iterdir() if path.name not in digests}
    return ExportReport(
        digests=digests,
        tensor_count=len(export.specs),
        weight_bytes=sum(spec.bytes for spec in export.specs),
        dtype=export.dtype_name,
    )


class _Export:
    """The tensors to write, planned from shapes alone, then read one by one."""

    def __init__(
        self,
        reader: TorchDistReader,
        template: HuggingFaceReader,
        config: dict[str, Any],
        dtype: str | None,
        on_tensor: Callable[[], object],
    ) -> None:
        self._reader, self._template, self._on_tensor = reader, template, on_tensor
        self._layout: WeightLayout = weight_layout(config)
        self._vocabulary_size = int(config["vocab_size"])
        self.dtype_name = dtype or config_dtype(config)
        if self.dtype_name not in DTYPES:
            raise UsageError(f"dtype {self.dtype_name!r} is not one of {', '.join(DTYPES)}")
        self._sources: dict[str, str] = {}
        self.specs: list[TensorSpec] = []
        for name in reader.names():
            if not (name == "output_layer.weight" and self._layout.tie_word_embeddings):
                self._plan(name)

    def _plan(self, name: str) -> None:
        shape = self._reader.describe(name).shape
        for hf_name, tensor in self._convert(name, torch.empty(shape, device="meta")):
            if hf_name in self._sources:
                raise DataError(f"{self._sources[hf_name]} and {name} of the checkpoint both become {hf_name}")
            self._sources[hf_name] = name
            self.specs.append(TensorSpec(name=hf_name, shape=tuple(tensor.shape), dtype=DTYPES[self.dtype_name]))

    def _convert(self, name: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        if name in _OVER_VOCABULARY:
            if whole.shape[0] < self._vocabulary_size:
                raise DataError(
                    f"{name} of the checkpoint has {whole.shape[0]} rows, config.json {self._vocabulary_size}"
                )
            whole = whole[: self._vocabulary_size]
        return to_huggingface(name, [whole], self._layout)

    def keep_prediction_layers(self) -> None:
        """Those that were not in training stay the template's: engines guess tokens ahead by them."""
        for name in sorted(self._template.names() - self._sources.keys()):
            if self._layout.is_of_prediction(name):
                self._sources[name] = FROM_TEMPLATE
                shape = tuple(self._template.read(name).shape)
                self.specs.append(TensorSpec(name=name, shape=shape, dtype=DTYPES[self.dtype_name]))

    def check_names(self) -> None:
        """The template's own weights say which tensors the model has."""
        expected = {name for name in self._template.names() if not name.endswith(_DERIVED)}
        if self._layout.tie_word_embeddings:
            expected.discard("lm_head.weight")
        missing, unexpected = expected - self._sources.keys(), self._sources.keys() - expected
        if missing or unexpected:
            raise DataError(
                f"{self._reader.checkpoint} is not of the model in {self._template.folder}:"
                f" missing {_some(missing)}, unexpected {_some(unexpected)}",
                hint="export with the model folder that training began with as template",
            )

    def write(self, path: Path, specs: list[TensorSpec]) -> str:
        return write_safetensors(path, specs, self._tensors(specs))

    def _tensors(self, specs: list[TensorSpec]) -> Iterator[Tensor]:
        """In the order of `specs`. Tensors of one parameter follow each other, so that it is read once."""
        source, converted = "", dict[str, Tensor]()
        for spec in specs:
            if self._sources[spec.name] == FROM_TEMPLATE:
                converted[spec.name] = self._template.read(spec.name)
            elif self._sources[spec.name] != source:
                source = self._sources[spec.name]
                converted = dict(self._convert(source, self._reader.read(source)))
            yield converted.pop(spec.name).to(spec.dtype)
            self._on_tensor()


def _split_shards(specs: list[TensorSpec], max_shard_bytes: int) -> dict[str, list[TensorSpec]]:
    """File names with what they hold, filled in order; a tensor larger than the limit has a file to itself."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if shards[-1] and size + spec.bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.bytes
    if len(shards) == 1:
        return {SINGLE_FILE: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard for number, shard in enumerate(shards, 1)}


def _write_index(target: Path, shards: dict[str, list[TensorSpec]]) -> None:
    total = sum(spec.bytes for shard in shards.values() for spec in shard)
    weight_map = {spec.name: file for file, shard in shards.items() for spec in shard}
    _write_json(target / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def config_dtype(config: dict[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"
