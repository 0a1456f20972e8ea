"""Reward functions as users write them, for the hub."""

from __future__ import annotations

from typing import Any


async def score_async(args: Any, sample: Any, **kwargs: Any) -> Any:
    return [float(len(each.response)) for each in sample] if isinstance(sample, list) else float(len(sample.response))


def score_plainly(args: Any, sample: Any) -> float:
    return float(args.bonus)


def score_keywords(args: Any, sample: Any, **kwargs: Any) -> Any:
    return kwargs


def score_one_only(args: Any, sample: Any) -> float:
    return 1.0
