"""[plugins]: functions that take over a whole part, and the settings of your own that they get."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from slime_stages.config.types import LocalPath, Section


class Plugins(Section):
    title: ClassVar[str] = "functions that take over a whole part, and the settings of your own that they get"
    undigested: ClassVar[frozenset[str]] = frozenset(
        {
            "custom_config_path",
            "custom_rollout_log_function_path",
            "custom_eval_rollout_log_function_path",
        }
    )
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {"custom_config", "rollout_function_path", "data_source_path"}
    )

    rollout_function_path: str | None = None
    """`module.function` that makes the samples of a shard, in place of what lies between prompts and rewards."""

    data_source_path: str | None = None
    """`module.Class` that says which prompts are asked, in place of the order of the prompt table."""

    custom_rollout_log_function_path: str | None = None
    """`module.function` called with the samples of each iteration once they are scored; if it returns something true,
    no line is added to `metrics/rollout.jsonl`."""

    custom_eval_rollout_log_function_path: str | None = None
    """The same for each evaluation and `metrics/eval.jsonl`."""

    custom_config_path: LocalPath | None = None
    """YAML file whose keys become attributes of `args`, also over settings of the same name: for plug-ins only."""

    custom_config: dict[str, Any] = Field(default={})
    """The keys of `custom_config_path`, as they were read when the run was made."""
