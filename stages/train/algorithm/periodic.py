"""When something that happens every so many iterations happens (spec §A.0)."""

from __future__ import annotations


def should_run_periodic_action(
    rollout_id: int, interval: int | None, *, per_epoch: int | None = None, num_rollout: int | None = None
) -> bool:
    """True after every `interval` iterations, at each epoch's end, and on the last one if `num_rollout` is given.

    `rollout_id` counts iterations from 0, `per_epoch` is iterations per epoch. Without an interval never: saving passes
    `num_rollout`, evaluation does not.
    """
    if interval is None:
        return False
    done = rollout_id + 1
    if num_rollout is not None and done == num_rollout:
        return True
    return done % interval == 0 or (per_epoch is not None and done % per_epoch == 0)
