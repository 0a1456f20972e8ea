"""[eval]: how a version of the weights is measured on other prompts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge
from pydantic import AfterValidator, NonNegativeFloat, PositiveInt

from slime_stages.config.types import Section, Share, absolute_path


def absolute_paths_of_pairs(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(absolute_path(word) if position % 2 else word for position, word in enumerate(words))


class Eval(Section):
    title: ClassVar[str] = "how a version of the weights is measured on other prompts"

    eval_interval: PositiveInt | None = None
    """Evaluate after every so many iterations, and before the first; never without it."""

    eval_prompt_data: Annotated[tuple[str, ...], AfterValidator(absolute_paths_of_pairs)] | None = None
    """Data sets as `NAME FILE [NAME FILE ...]`, files as in `prompt_data`; metrics and folders have these names."""

    skip_eval_before_train: bool = False
    """Do not evaluate before the first iteration."""

    n_samples_per_eval_prompt: PositiveInt = 1
    """Samples drawn for each prompt of evaluation."""

    eval_input_key: str | None = None
    """Column of the prompt; `input_key` without it."""

    eval_label_key: str | None = None
    """Column of the right answer; `label_key` without it."""

    eval_tool_key: str | None = None
    """Column of the tools; `tool_key` without it."""

    eval_temperature: NonNegativeFloat | None = None
    """Temperature, 0 for the likeliest token always; `rollout_temperature` without it."""

    eval_top_p: Share | None = None
    """As `rollout_top_p`, which it is without a value of its own."""

    eval_top_k: Annotated[int, Ge(-1)] | None = None
    """As `rollout_top_k`, which it is without a value of its own."""

    eval_max_response_len: PositiveInt | None = None
    """Most tokens of a response; `rollout_max_response_len` without it."""

    @property
    def datasets(self) -> tuple[tuple[str, str], ...]:
        """(name, file) of each data set."""
        words = self.eval_prompt_data or ()
        return tuple(zip(words[::2], words[1::2], strict=True))
