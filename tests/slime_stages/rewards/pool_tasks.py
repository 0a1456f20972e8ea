"""Tasks for reward pools, and looks at the processes behind them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slime_stages.rewards.pool import RewardPool, RewardTask
from slime_stages.sample import Sample

HOSTILE = "tests.slime_stages.rewards.hostile_rewards"


def open_pool(**changes: Any) -> RewardPool:
    """A pool of two workers that do what the samples' labels say."""
    settings: dict[str, Any] = {"workers": 2, "timeout_seconds": 30.0, "memory_bytes": None, "tasks_per_worker": 100}
    args = changes.pop("args", {"custom_rm_path": f"{HOSTILE}.reward"})
    return RewardPool(args, **(settings | changes))


def act(name: str, path: Path | None = None, key: str | None = None) -> RewardTask:
    """A task for `hostile_rewards.reward`."""
    label = {"act": name, "path": None if path is None else str(path)}
    return RewardTask(key=key or name, samples=[Sample(label=label).to_dict()], is_list=False)


def answer(response: str, label: Any, key: str = "0") -> RewardTask:
    """A response for a built-in reward type."""
    return RewardTask(key=key, samples=[Sample(response=response, label=label).to_dict()], is_list=False)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(claim: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether the claim becomes true in time."""
    deadline = time.monotonic() + seconds
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.02)
    return claim()
