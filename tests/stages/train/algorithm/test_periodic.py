"""Intervals, epoch ends and the last iteration."""

from __future__ import annotations

from stages.train.algorithm.periodic import should_run_periodic_action


def test_an_interval_fires_on_every_multiple_and_on_the_last_iteration() -> None:
    fired = [should_run_periodic_action(rollout_id, 2, num_rollout=5) for rollout_id in range(5)]

    assert fired == [False, True, False, True, True]


def test_an_epochs_end_fires_whatever_the_interval() -> None:
    fired = [should_run_periodic_action(rollout_id, 10, per_epoch=3) for rollout_id in range(6)]

    assert fired == [False, False, True, False, False, True]


def test_without_an_interval_nothing_fires() -> None:
    assert not should_run_periodic_action(4, None, per_epoch=5, num_rollout=5)
