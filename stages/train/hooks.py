"""Functions of the user's that training calls, as slime calls them; see `slime_stages.config.hooks` for the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slime_stages.config import Config
from slime_stages.config.hooks import BY_SETTING, load_hook

if TYPE_CHECKING:
    from stages.train.megatron.step import Trainer


@dataclass(slots=True)
class Hooks:
    """The functions that a config names, and the one `args` that all of them get."""

    config: Config
    args: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.args = self.config.as_args()

    def find(self, setting: str) -> Callable[..., Any] | None:
        path = self.config.flat()[setting]
        return None if path is None else load_hook(BY_SETTING[setting], path)

    def megatron_is_ready(self) -> None:
        if (function := self.find("custom_megatron_init_path")) is not None:
            function(self.args)

    def before_log_probs(self, trainer: Trainer, prefix: str) -> None:
        """`prefix` is that of the column: `ref_`, `teacher_`, or nothing for the policy's own."""
        if (function := self.find("custom_megatron_before_log_prob_hook_path")) is not None:
            function(self.args, trainer.chunks, prefix)

    def before_step(self, trainer: Trainer, iteration: int, step: int) -> None:
        if (function := self.find("custom_megatron_before_train_step_hook_path")) is not None:
            function(self.args, iteration, step, trainer.chunks, trainer.optimizer, trainer.scheduler)
