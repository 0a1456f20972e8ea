"""The user's functions over groups of a shard: which handed-over ones to take, what to train on, what to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime_stages.config import Config
from slime_stages.config.hooks import BY_SETTING, load_hook
from slime_stages.errors import UsageError
from slime_stages.sample import Sample

Groups = list[list[Sample]]

OVER_GROUPS = (
    "buffer_filter_path",
    "dynamic_sampling_filter_path",
    "rollout_sample_filter_path",
    "rollout_all_samples_process_path",
)


def hook_of(config: Config, setting: str) -> Callable[..., Any] | None:
    """The function that a setting of [rollout] names; None without one. UsageError if it cannot be called as it is."""
    path = getattr(config.rollout, setting)
    function: Any = None if path is None else load_hook(BY_SETTING[setting], path)
    return function  # type: ignore[no-any-return]


def buffer_filter(config: Config) -> Callable[[Groups, int], Groups] | None:
    """Takes groups out of the buffer by the user's function; None without one. UsageError if it loses any."""
    function, args = hook_of(config, "buffer_filter_path"), config.as_args()
    if function is None:
        return None

    def choose(buffer: Groups, count: int) -> Groups:
        before = [id(group) for group in buffer]
        chosen = list(function(args, None, buffer, count))
        after = [id(group) for group in [*chosen, *buffer]]
        if len(chosen) > count or sorted(after) != sorted(before):
            raise UsageError(
                f"`{config.rollout.buffer_filter_path}` was asked for {count} of {len(before)} groups, "
                f"returned {len(chosen)} and left {len(buffer)} in the buffer",
                hint="return groups of the buffer, and remove from the buffer those alone",
            )
        return chosen

    return choose


def filter_samples(config: Config, groups: Groups) -> None:
    """Let the user's function set `remove_sample` in the kept groups."""
    if function := hook_of(config, "rollout_sample_filter_path"):
        function(config.as_args(), groups)


def process_all_samples(config: Config, groups: Groups, upcoming: Callable[[int], Groups]) -> None:
    """Show the user's function all finished groups; `upcoming(n)` gives copies of the next n, without asking them."""
    if function := hook_of(config, "rollout_all_samples_process_path"):
        function(config.as_args(), groups, upcoming)


def load_hooks(config: Config) -> None:
    """UsageError, before anything is asked, for a function that cannot be called as it will be."""
    for setting in OVER_GROUPS:
        hook_of(config, setting)
