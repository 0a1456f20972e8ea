"""Reward type `random`: a coin, for trying a pipeline without a task."""

from __future__ import annotations

import random


def grade_random(seed: str | int | None = None) -> int:
    """0 or 1: always the same for one seed, a fresh toss without."""
    return random.Random(seed).randint(0, 1)
