"""A reward that any scoring of the same tokens gives again, and that can be turned round."""

from __future__ import annotations

import os
from typing import Any

from slime_stages.sample import Sample


def parity(args: Any, sample: Sample) -> float:
    """1 if the sum of the token ids is odd; with PARITY=even, if it is even."""
    return float((sum(sample.tokens) + (os.environ.get("PARITY") == "even")) % 2)


def nothing(args: Any, sample: Sample) -> float:
    return 0.0
