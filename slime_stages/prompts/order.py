"""Which prompt is asked when: pure functions of the run's seed, so that any shard of any iteration can be asked again.

Positions count the prompts of the whole run from 0. An epoch is one pass over the table; epoch e is shuffled with
seed + e from the table's own order, as slime does, whatever was asked before.
"""

from __future__ import annotations

import random
from functools import lru_cache

SAMPLING_SEED_BOUND = 1 << 31
"""Seeds stay below this, so that every sampler can take them."""


def prompt_at(position: int, count: int, seed: int, shuffle: bool) -> tuple[int, int]:
    """(epoch, row) of a position in a table of `count` rows."""
    epoch, place = divmod(position, count)
    return epoch, epoch_order(epoch, count, seed)[place] if shuffle else place


@lru_cache(maxsize=4)
def epoch_order(epoch: int, count: int, seed: int) -> tuple[int, ...]:
    """Rows in the order in which a shuffled epoch asks them."""
    order = list(range(count))
    random.Random(seed + epoch).shuffle(order)
    return tuple(order)


def sample_index(position: int, sample: int, n_samples_per_prompt: int) -> int:
    """slime's `Sample.index`; its `group_index` is the position itself."""
    return position * n_samples_per_prompt + sample


def sampling_seed(run_seed: int, iteration: int, position: int, sample: int) -> int:
    """Seed of the engine's sampler for one sample, in [0, 2**31). Neighbours have nothing in common."""
    import xxhash

    name = f"{run_seed}/{iteration}/{position}/{sample}"
    return xxhash.xxh3_64_intdigest(name.encode()) % SAMPLING_SEED_BOUND
