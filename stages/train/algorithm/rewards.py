"""Rewards as the advantages see them: centred, and perhaps scaled, within the samples of one prompt (spec §A.4)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

AdvantageEstimator = Literal["grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"]

CENTRED_ESTIMATORS = frozenset({"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"})
SCALED_ESTIMATORS = frozenset({"grpo", "gspo", "cispo"})
STD_EPSILON = 1e-6


def normalize_rewards(rewards: npt.ArrayLike, group_indices: npt.ArrayLike, *, std: bool) -> npt.NDArray[np.float32]:
    """[S] reward minus the mean of its group, and with `std` divided by the unbiased deviation + 1e-6.

    A group is the samples that share a `group_index`, wherever they stand and however many they are; slime groups by
    position, which mixes prompts as soon as one attempt gives several samples. A group of one becomes 0, never NaN.
    Siblings of one rollout count once each, as in slime.
    """
    values = np.asarray(rewards, dtype=np.float64)
    groups = np.asarray(group_indices)
    assert values.shape == groups.shape, (values.shape, groups.shape)
    assert np.isfinite(values).all(), "unscored samples must be dropped before rewards are normalised"

    _, member_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    centred = values - (np.bincount(member_of, weights=values, minlength=len(counts)) / counts)[member_of]
    centred[(counts == 1)[member_of]] = 0.0
    if std:
        squares = np.bincount(member_of, weights=centred**2, minlength=len(counts))
        deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
        centred /= deviation[member_of] + STD_EPSILON
    return centred.astype(np.float32)


def post_process_rewards(
    raw_rewards: npt.ArrayLike,
    group_indices: npt.ArrayLike,
    *,
    advantage_estimator: AdvantageEstimator,
    rewards_normalization: bool = True,
    grpo_std_normalization: bool = True,
) -> npt.NDArray[np.float32]:
    """[S] the rewards this estimator trains on: centred and scaled, centred, or as they are."""
    if not rewards_normalization or advantage_estimator not in CENTRED_ESTIMATORS:
        return np.asarray(raw_rewards, dtype=np.float32)
    std = grpo_std_normalization and advantage_estimator in SCALED_ESTIMATORS
    return normalize_rewards(raw_rewards, group_indices, std=std)
