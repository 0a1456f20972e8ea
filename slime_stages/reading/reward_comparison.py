"""How rewards of another name differ from the run's own, over the samples of an iteration that both have scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.lineage import committed, shard_manifest_path
from slime_stages.named_rewards import OWN, names_of, stage_of
from slime_stages.reading.lookup import reward_manifest
from slime_stages.run.manifest import data_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rewards of a name beside the run's own."""

    name: str
    samples: int
    """Scored under this name."""
    without: int
    """Of these, how many have no reward: its function failed, or there was nothing to score."""
    mean: float | None
    """None where no sample has a reward; so are the others."""
    own_mean: float | None
    both: int
    """Samples that have a reward of either kind."""
    mean_difference: float | None
    """Over those: this one's less the run's own."""
    agreement: float | None
    """Share of those with the very same reward."""


def comparisons(run: RunDir, plan: Plan, shards: Sequence[int]) -> list[Comparison]:
    """One for each name that any of the shards is scored under, leaving out what is of an earlier rollout."""
    found = []
    for name in names_of(run):
        scored = [shard for shard in shards if reward_manifest(run, plan, shard, stage_of(name)) is not None]
        if scored:
            own = np.concatenate([_own(run, plan, shard) for shard in scored])
            found.append(compare(name, np.concatenate([_rewards(run, plan, shard, name) for shard in scored]), own))
    return found


def compare(name: str, rewards: NDArray[np.float64], own: NDArray[np.float64]) -> Comparison:
    """Of two rewards for each sample, NaN where there is none."""
    both = ~np.isnan(rewards) & ~np.isnan(own)
    differences = (rewards - own)[both]
    return Comparison(
        name=name,
        samples=len(rewards),
        without=int(np.isnan(rewards).sum()),
        mean=_mean(rewards[~np.isnan(rewards)]),
        own_mean=_mean(own[~np.isnan(own)]),
        both=int(both.sum()),
        mean_difference=_mean(differences),
        agreement=_mean(differences == 0),
    )


def _own(run: RunDir, plan: Plan, shard: int) -> NDArray[np.float64]:
    if reward_manifest(run, plan, shard, OWN) is None:
        return np.full(committed(run, plan, "rollout", shard).rows, np.nan)
    return _rewards(run, plan, shard, None)


def _rewards(run: RunDir, plan: Plan, shard: int, name: str | None) -> NDArray[np.float64]:
    stage = stage_of(name)
    path = data_path(shard_manifest_path(run, plan, stage, shard), committed(run, plan, stage, shard))
    rewards: NDArray[np.float64] = read_shard(path, REWARD, ("reward",))["reward"].to_numpy().astype(np.float64)
    return rewards


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
