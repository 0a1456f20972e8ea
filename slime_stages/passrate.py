"""pass@k: how often at least one of k attempts at a prompt is right (spec §E.13; arXiv 2107.03374)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def estimate_pass_at_k(attempts: int, correct: int, k: int) -> float:
    """Unbiased estimate from `correct` right ones of `attempts`: 1 - C(attempts - correct, k) / C(attempts, k)."""
    assert 0 <= correct <= attempts, (correct, attempts)
    assert 1 <= k <= attempts, (k, attempts)
    if attempts - correct < k:
        return 1.0
    return float(1 - np.prod(1 - k / np.arange(attempts - correct + 1, attempts + 1)))


def pass_rates(rewards: npt.ArrayLike, group_indices: npt.ArrayLike, rollout_ids: npt.ArrayLike) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` … of S samples; an attempt is right if one of its samples has reward 1 exactly.

    Groups may differ in size: pass@k is the mean over the groups with at least k attempts. Samples that share a
    `rollout_id` are one attempt. Empty where no group has two attempts.
    """
    attempts, attempt_of = np.unique(np.asarray(rollout_ids), return_inverse=True)
    is_correct = np.zeros(len(attempts), dtype=bool)
    np.logical_or.at(is_correct, attempt_of, np.asarray(rewards, dtype=np.float64) == 1)
    group_of_attempt = np.empty(len(attempts), dtype=np.int64)
    group_of_attempt[attempt_of] = np.asarray(group_indices)

    _, member_of, sizes = np.unique(group_of_attempt, return_inverse=True, return_counts=True)
    correct = np.bincount(member_of, weights=is_correct, minlength=len(sizes)).astype(int)
    largest = int(sizes.max(initial=0))
    if largest < 2:
        return {}
    shapes, group_counts = np.unique(np.stack([sizes, correct], axis=1), axis=0, return_counts=True)
    return {
        f"pass@{k}": float(
            np.average(
                [estimate_pass_at_k(int(size), int(right), k) for size, right in shapes if size >= k],
                weights=group_counts[shapes[:, 0] >= k],
            )
        )
        for k in (2**power for power in range(largest.bit_length()))
    }
