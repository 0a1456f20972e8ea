"""What an iteration's samples look like, under slime's metric keys without the `rollout/` prefix (spec §E.13)."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

REPETITION_TAIL_CHARS = 10_000
REPETITION_RATIO = 10


def length_statistics(lengths: npt.ArrayLike, prefix: str = "response_len") -> dict[str, float]:
    """`response_len/mean`, `median`, `max`, `min` of lengths [S] in tokens, which in slime are mask sums."""
    values = np.asarray(lengths, dtype=np.float64)
    if values.size == 0:
        return {}
    statistics = {"mean": values.mean(), "median": np.median(values), "max": values.max(), "min": values.min()}
    return {f"{prefix}/{name}": float(value) for name, value in statistics.items()}


def zero_std_counts(rewards: npt.ArrayLike, group_indices: npt.ArrayLike) -> dict[str, int]:
    """`zero_std/count_{reward}`: groups whose raw rewards [S] are all exactly equal, by that reward to one decimal.

    Such a group has no advantage and teaches nothing; a group of one counts too.
    """
    values = np.asarray(rewards, dtype=np.float64)
    _, first, member_of = np.unique(np.asarray(group_indices), return_index=True, return_inverse=True)
    differs = np.bincount(member_of, weights=values != values[first][member_of], minlength=len(first))
    counts = Counter(f"zero_std/count_{value:.1f}" for value in values[first[differs == 0]] + 0.0)
    return dict(sorted(counts.items()))


def has_repetition(text: str) -> bool:
    """True if the text is over 10 000 characters and zlib shrinks its last 10 000 more than tenfold."""
    if len(text) <= REPETITION_TAIL_CHARS:
        return False
    tail = text[-REPETITION_TAIL_CHARS:].encode("utf-8", errors="replace")
    return len(tail) / len(zlib.compress(tail, 9)) > REPETITION_RATIO


def repetition_frac(responses: Iterable[str]) -> float:
    """Share of responses that repeat themselves; 0 for no responses."""
    flags = [has_repetition(response) for response in responses]
    return sum(flags) / max(len(flags), 1)


def truncated_ratio(truncated: npt.ArrayLike) -> float:
    """Share of samples [S] that ran into the length limit; 0 for no samples."""
    flags = np.asarray(truncated, dtype=bool)
    return float(flags.mean()) if flags.size else 0.0
