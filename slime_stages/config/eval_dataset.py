"""One set of evaluation prompts: what may differ from set to set, and what each falls back on.

An entry's own value comes before the defaults of its file, these before `eval_*` and `rollout_*` settings; null is no
value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from slime_stages.config.types import PromptSource, Share

if TYPE_CHECKING:
    from slime_stages.config.model import Config


def as_tuple(value: Any) -> Any:
    """A single text or number may stand for a list of it."""
    return value if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


class EvalDataset(BaseModel):
    """A set as `eval_config` has it; None: as the settings say."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    path: PromptSource
    """Prompt data, as in `prompt_data`."""

    n_samples_per_eval_prompt: PositiveInt | None = None
    """Samples drawn for each prompt."""

    temperature: NonNegativeFloat | None = None
    """0 for the likeliest token always."""

    top_p: Share | None = None
    top_k: Annotated[int, Ge(-1)] | None = None

    max_response_len: PositiveInt | None = None
    """Most tokens of a response."""

    max_context_len: PositiveInt | None = None
    """Most tokens of prompt and response together."""

    max_prompt_len: PositiveInt | None = None
    """Prompts of more tokens are left out."""

    min_new_tokens: Annotated[int, Ge(0)] | None = None
    """Fewest tokens of a response: none of them ends it before."""

    repetition_penalty: PositiveFloat | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] | None = None
    stop_token_ids: Annotated[tuple[int, ...], BeforeValidator(as_tuple)] | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    """Leave the text that ended a response in it; true without it."""

    rm_type: str | None = None
    """Reward type of every prompt, before the one in its own metadata."""

    custom_rm_path: str | None = None
    """`module.function` that scores these samples."""

    custom_generate_function_path: str | None = None
    """`module.function` that produces these samples."""

    metadata_overrides: dict[str, Any] = Field(default={})
    """Entries put into every prompt's metadata, over what its row has."""

    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    multimodal_keys: dict[str, str] | None = None
    apply_chat_template: bool | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None

    min_eval_samples: PositiveInt | None = None
    """Fewest samples with a reward from which a mean is given; below it the set has none."""


FALLBACKS = {
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt", "n_samples_per_prompt"),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
    "max_context_len": ("eval_max_context_len", "rollout_max_context_len"),
    "max_prompt_len": ("eval_max_prompt_len",),
    "min_new_tokens": ("eval_min_new_tokens",),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "skip_special_tokens": ("rollout_skip_special_tokens",),
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "multimodal_keys": ("multimodal_keys",),
    "apply_chat_template": ("apply_chat_template",),
    "apply_chat_template_kwargs": ("apply_chat_template_kwargs",),
    "custom_rm_path": ("eval_custom_rm_path", "custom_rm_path"),
    "custom_generate_function_path": ("custom_generate_function_path",),
}
"""Field of a set → settings that it takes its value from, the first that has one."""


def resolved_dataset(config: Config, name: str) -> EvalDataset:
    """The set with every value that a setting gives it."""
    return _resolved(dict(config.eval.datasets)[name], config.flat())


def resolved_datasets(config: Config) -> dict[str, EvalDataset]:
    """All sets of the run, in their order."""
    settings = config.flat()
    return {name: _resolved(dataset, settings) for name, dataset in config.eval.datasets}


def _resolved(dataset: EvalDataset, settings: Mapping[str, Any]) -> EvalDataset:
    filled = {name: _first(settings, FALLBACKS[name]) for name in FALLBACKS if getattr(dataset, name) is None}
    resolved = dataset.model_copy(update=filled)
    if resolved.max_prompt_len is None and resolved.max_context_len is not None:
        return resolved.model_copy(update={"max_prompt_len": resolved.max_context_len - 1})
    return resolved


def _first(settings: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value for name in names if (value := settings.get(name)) is not None), None)
