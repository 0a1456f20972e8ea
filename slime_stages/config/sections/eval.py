"""[eval]: how a version of the weights is measured on other prompts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge
from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from slime_stages.config.eval_dataset import EvalDataset
from slime_stages.config.types import LocalPath, Section, Share, prompt_source


def absolute_paths_of_pairs(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prompt_source(word) if position % 2 else word for position, word in enumerate(words))


class Eval(Section):
    title: ClassVar[str] = "how a version of the weights is measured on other prompts"
    in_plan: ClassVar[frozenset[str]] = frozenset({"eval_shards"})
    undigested: ClassVar[frozenset[str]] = frozenset({"eval_config", "log_passrate"})
    digested_if_set: ClassVar[frozenset[str]] = frozenset(
        {
            "eval_datasets",
            "eval_max_prompt_len",
            "eval_max_context_len",
            "eval_min_new_tokens",
            "eval_custom_rm_path",
            "eval_function_path",
        }
    )

    eval_interval: PositiveInt | None = None
    """Evaluate after every so many iterations, and before the first; never without it."""

    eval_prompt_data: Annotated[tuple[str, ...], AfterValidator(absolute_paths_of_pairs)] | None = None
    """Data sets as `NAME FILE [NAME FILE ...]`, files as in `prompt_data`; metrics and folders have these names."""

    eval_config: LocalPath | None = None
    """YAML file of data sets, each with what it has of its own; it counts in place of `eval_prompt_data`."""

    eval_datasets: dict[str, EvalDataset] = Field(default={})
    """The data sets of `eval_config` by name, as they were read when the run was made."""

    eval_shards: PositiveInt = 1
    """Parts that a data set's prompts are cut into, at most one for each prompt: each is one task of a job array."""

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

    eval_max_context_len: PositiveInt | None = None
    """Most tokens of prompt and response together; `rollout_max_context_len` without it."""

    eval_max_prompt_len: PositiveInt | None = None
    """Leave out prompts of more tokens than this; one less than the most tokens of prompt and response without it."""

    eval_min_new_tokens: NonNegativeInt | None = None
    """Fewest tokens of a response; none without it."""

    eval_custom_rm_path: str | None = None
    """`module.function` that scores evaluation samples; `custom_rm_path` without it."""

    eval_function_path: str | None = None
    """`module.function` that makes all samples of an evaluation shard; `rollout_function_path` without it."""

    log_passrate: bool = False
    """Add pass@1, pass@2, pass@4 ... to the metrics of evaluations and of iterations: how many prompts so many attempts
    solve, where a sample is right if its reward is 1."""

    @property
    def datasets(self) -> tuple[tuple[str, EvalDataset], ...]:
        """(name, what it has of its own) of each data set."""
        if self.eval_datasets:
            return tuple(self.eval_datasets.items())
        words = self.eval_prompt_data or ()
        return tuple((name, EvalDataset(path=path)) for name, path in zip(words[::2], words[1::2], strict=True))
