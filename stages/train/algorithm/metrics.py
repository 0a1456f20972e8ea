"""What an iteration's samples look like, under slime's metric keys without the `rollout/` prefix (spec §E.13)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt


def zero_std_counts(rewards: npt.ArrayLike, group_indices: npt.ArrayLike) -> dict[str, int]:
    """`zero_std/count_{reward}`: groups whose raw rewards [S] are all exactly equal, by that reward to one decimal.

    Such a group has no advantage and teaches nothing; a group of one counts too.
    """
    values = np.asarray(rewards, dtype=np.float64)
    _, first, member_of = np.unique(np.asarray(group_indices), return_index=True, return_inverse=True)
    differs = np.bincount(member_of, weights=values != values[first][member_of], minlength=len(first))
    counts = Counter(f"zero_std/count_{value:.1f}" for value in values[first[differs == 0]] + 0.0)
    return dict(sorted(counts.items()))
