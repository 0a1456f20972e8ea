"""MurmurHash3, from which SGLang makes the noise of a seeded sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

ROTATE_AFTER_MULTIPLY, ROTATE_AFTER_MIX = 15, 13


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[rows, columns] MurmurHash3 (32 bits) of the 16 bytes seed, position, column, little-endian, hash seed 0."""
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    seeds = seed.numpy().astype(np.uint64)
    state = np.zeros(len(seeds), np.uint32)
    for block in (seeds & low, seeds >> high, positions.numpy().astype(np.uint64) & low):
        state = _mix(state, _scramble(block.astype(np.uint32)))

    hashed = np.empty((len(seeds), len(columns)), np.uint32)
    scratch = np.empty(len(columns), np.uint32)
    scrambled_columns = _scramble(columns.numpy().astype(np.uint32))
    for row, row_state in zip(hashed, state, strict=True):
        np.bitwise_xor(scrambled_columns, row_state, out=row)
        _finish(row, scratch)
    return torch.from_numpy(hashed)


def _rotate(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _scramble(block: np.ndarray) -> np.ndarray:
    return _rotate(block * np.uint32(0xCC9E2D51), ROTATE_AFTER_MULTIPLY) * np.uint32(0x1B873593)


def _mix(state: np.ndarray, scrambled: np.ndarray) -> np.ndarray:
    return _rotate(state ^ scrambled, ROTATE_AFTER_MIX) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(row: np.ndarray, scratch: np.ndarray) -> None:
    """The last mix, the length (16 bytes) and the avalanche, in place: this runs over rows of vocabulary size."""
    np.right_shift(row, np.uint32(32 - ROTATE_AFTER_MIX), out=scratch)
    np.left_shift(row, np.uint32(ROTATE_AFTER_MIX), out=row)
    np.bitwise_or(row, scratch, out=row)
    row *= np.uint32(5)
    row += np.uint32(0xE6546B64)
    row ^= np.uint32(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        np.right_shift(row, np.uint32(shift), out=scratch)
        row ^= scratch
        row *= np.uint32(factor)


_LIBRARY: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_LIBRARY.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
