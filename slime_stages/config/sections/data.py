"""[data]: where prompts come from and in which order."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt

from slime_stages.config.types import LocalPath, Options, Section


class Data(Section):
    title: ClassVar[str] = "where prompts come from and in which order"

    prompt_data: tuple[LocalPath, ...]
    """Prompt files, `.jsonl` or `.parquet`, read one after the other; `FILE@[a:b]` takes rows a to b-1."""

    input_key: str = "input"
    """Column of the prompt: a text, or a list of chat messages."""

    label_key: str | None = None
    """Column of the right answer that the reward function compares with."""

    metadata_key: str = "metadata"
    """Column of a table that travels with each sample, for reward functions and plug-ins."""

    tool_key: str = "tools"
    """Column of the tools that the chat template shows to the model."""

    apply_chat_template: bool = False
    """Wrap each prompt in the tokenizer's chat template, with the opening of an assistant turn."""

    apply_chat_template_kwargs: Options = Field(default={})
    """Arguments of the chat template, such as `{"enable_thinking": false}`."""

    rollout_shuffle: bool = False
    """Shuffle the prompts anew in every epoch, by `rollout_seed` and the epoch's number."""

    rollout_seed: int = 42
    """Seed of the prompt order and of every sample: the same seed asks the same questions and draws alike."""

    rollout_max_prompt_len: PositiveInt | None = None
    """Leave out prompts of more tokens than this; one less than `rollout_max_context_len` if that is set."""

    num_rollout: PositiveInt | None = None
    """Iterations in the whole run. Without it a run has no last one, and `lr` can only decay by `lr_decay_iters`."""
