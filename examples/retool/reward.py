"""Right or wrong, and for a wrong answer a little more the more was computed: `--reward-key score`."""

from __future__ import annotations

from typing import Any

from slime.rollout.rm_hub.math_dapo_utils import compute_score

BEST_WRONG, STEP = -0.6, 0.05


async def reward(args: Any, sample: Any, **kwargs: Any) -> dict[str, float]:
    """1 for the right box; else from -1.1 without a program up to -0.6."""
    calls = sample.metadata.get("tool_calls", 0)
    score = float(compute_score(sample.response, str(sample.label), strict_box_verify=True)["score"])
    if score < 0:
        score = min(BEST_WRONG, -1 + (calls - 2) * STEP)
    return {"score": score, "tool_calls": float(calls)}
