"""[data]: where prompts come from and in which order."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt

from slime_stages.config.types import Options, PromptSource, Section


class Data(Section):
    title: ClassVar[str] = "where prompts come from and in which order"

    prompt_data: tuple[PromptSource, ...] = ()
    """Files, folders and data set names, read one after the other; `SOURCE:SPLIT`, `SOURCE@[a:b]` for rows a to b-1."""

    disable_rollout_global_dataset: bool = False
    """There is no prompt data: each prompt is a blank one, which a custom generate function fills in."""

    input_key: str = "input"
    """Column of the prompt, a text or a list of chat messages; here and below, dots lead into a column: `a.b`."""

    label_key: str | None = None
    """Column of the right answer that the reward function compares with."""

    metadata_key: str = "metadata"
    """Column of a table that travels with each sample, for reward functions and plug-ins."""

    tool_key: str = "tools"
    """Column of the tools that the chat template shows to the model."""

    multimodal_keys: dict[str, str] | None = None
    """`{"image": COLUMN}`: the column whose images stand where the prompt says `<image>`."""

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

    num_epoch: PositiveInt | None = None
    """Passes over the prompts, each of whole batches: sets `num_rollout`, if that is not given."""

    @property
    def rollout_global_dataset(self) -> bool:
        return not self.disable_rollout_global_dataset
