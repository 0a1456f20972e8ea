"""[reward]: how samples are scored."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from slime_stages.config.types import Section


class Reward(Section):
    title: ClassVar[str] = "how samples are scored"
    undigested: ClassVar[frozenset[str]] = frozenset({"remote_rm_requests", "reward_shard_timeout"})
    digested_if_set: ClassVar[frozenset[str]] = frozenset({"code_timeout", "code_sandbox"})

    rm_type: str | None = None
    """Built-in reward, such as `math`, `dapo` or `remote_rm`; a prompt's metadata may name another by `rm_type`."""

    rm_url: str | None = None
    """Address of the reward server that `remote_rm` asks."""

    custom_rm_path: str | None = None
    """`module.function` that scores a sample, in place of a built-in reward."""

    reward_key: str | None = None
    """Entry to train on where the reward is a table of several numbers."""

    eval_reward_key: str | None = None
    """The same for evaluation; `reward_key` without it."""

    group_rm: bool = False
    """Score the samples of a prompt together: the function gets the whole list."""

    reward_timeout: PositiveFloat = 60.0
    """Seconds that one call may take; then its process is killed and the reward is null."""

    reward_workers: PositiveInt | None = None
    """Processes that score at the same time; one per core of the job without it."""

    reward_memory_gb: PositiveFloat = 16.0
    """Most memory of one of these processes, in GiB; a call that needs more fails and its reward is null."""

    reward_shard_timeout: PositiveFloat | None = None
    """Seconds for scoring a whole shard; one that takes longer publishes nothing and says what was left, exit 75."""

    remote_rm_requests: PositiveInt = 64
    """Samples that one job asks the reward server about at a time."""

    code_timeout: PositiveFloat | None = None
    """Seconds for all tests of one program, for `code`; half of `reward_timeout` without it."""

    code_sandbox: Literal["namespaces", "limits"] = "namespaces"
    """Around programs of `code`: user namespaces, with no network and no file to write, or only limits on resources."""
