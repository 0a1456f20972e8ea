"""Copies of a model's weights in the processor's memory, by name, of which one at a time takes the model's place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CURRENT = "current"


class WeightCopies:
    """Of one rank's share of a model, such as the reference that its policy is compared with."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._module = torch.nn.ModuleList(modules)
        self._kept: dict[str, dict[str, Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    @torch.no_grad()
    def keep(self, name: str) -> None:
        """Copy what the model holds now; an earlier copy of that name is overwritten."""
        kept = self._kept.setdefault(name, {})
        for key, parameter in self._module.named_parameters():
            if key not in kept:
                kept[key] = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.is_cuda)
            kept[key].copy_(parameter)

    @contextmanager
    def in_place(self, name: str) -> Iterator[None]:
        """Within the block the model holds the copy; afterwards, bit for bit, what it held before."""
        self.keep(CURRENT)
        self._fill(name)
        try:
            yield
        finally:
            self._fill(CURRENT)

    @torch.no_grad()
    def _fill(self, name: str) -> None:
        for key, parameter in self._module.named_parameters():
            parameter.copy_(self._kept[name][key])
