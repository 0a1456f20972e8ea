"""Dynamic sampling filters: which scored groups are worth training on.

`--dynamic-sampling-filter-path slime_stages.generation.filters.check_reward_nonzero_std`, or a function of one's own,
`filter(args, group)`, that returns a `DynamicFilterOutput` or a truth value. `group` is a flat list of the prompt's
samples with their rewards, siblings of a fan-out included; samples that failed have none and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slime_stages.sample import Sample

SMALLEST_STD = 1e-6


@dataclass(slots=True)
class DynamicFilterOutput:
    """What a filter says of a group."""

    keep: bool
    reason: str | None = None
    """Why not, in a word: dropped groups are counted by it."""
    keep_when_insufficient: bool = False
    """Keep it all the same where further prompts would have to be asked in its place."""


def check_reward_nonzero_std(args: Any, samples: list[Sample], **kwargs: Any) -> DynamicFilterOutput:
    """Keep a group whose rewards differ: where all agree, advantages are zero. A single sample never differs."""
    rewards = np.array([sample.get_reward_value(args) for sample in samples], np.float64)
    differs = len(rewards) > 1 and float(rewards.std(ddof=1)) > SMALLEST_STD
    reason = None if differs else f"zero_std_{round(float(rewards[0]), 1)}"
    return DynamicFilterOutput(keep=differs, reason=reason)


def check_reward_nonzero_std_with_fallback(args: Any, samples: list[Sample], **kwargs: Any) -> DynamicFilterOutput:
    """The same, but a group whose rewards agree is kept rather than asking further prompts."""
    found = check_reward_nonzero_std(args, samples)
    return DynamicFilterOutput(keep=found.keep, reason=found.reason, keep_when_insufficient=True)
