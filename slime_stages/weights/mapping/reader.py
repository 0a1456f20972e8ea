"""Read single tensors out of a Hugging Face folder, so that no more than one needs to be in memory."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import safe_open
from torch import Tensor

from slime_stages.errors import DataError, MissingInputError


class HuggingFaceReader:
    """The tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()
        self._weight_map = self._read_weight_map()

    def _read_weight_map(self) -> dict[str, str]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
            return weight_map
        if not (self.folder / "model.safetensors").is_file():
            raise MissingInputError(
                f"{self.folder} holds neither model.safetensors nor model.safetensors.index.json",
                hint="name a folder in Hugging Face format with safetensors weights",
            )
        return dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self.folder / file_name
            if not path.is_file():
                raise MissingInputError(f"{self.folder} lists {file_name} in its index but does not hold it")
            self._files[file_name] = self._stack.enter_context(safe_open(path, framework="pt"))
        return self._files[file_name]

    def names(self) -> set[str]:
        return set(self._weight_map)

    def read(self, name: str) -> Tensor:
        if name not in self._weight_map:
            raise DataError(
                f"{self.folder} holds no tensor {name}",
                hint="compare its config.json (tie_word_embeddings, model_type) with its safetensors files",
            )
        tensor: Tensor = self._open(self._weight_map[name]).get_tensor(name)
        return tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
