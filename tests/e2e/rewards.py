"""A reward that any scoring of the same tokens gives again, and that differs within a group."""

from __future__ import annotations

from typing import Any

from slime_stages.sample import Sample


def parity(args: Any, sample: Sample) -> float:
    """1 if the sum of the token ids is odd."""
    return float(sum(sample.tokens) % 2)
