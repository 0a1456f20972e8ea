"""What prompt data to read, and how: slime's flags of the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

USUAL_INPUT_KEY = "input"
"""Where nobody has named a column, rows of a schema that we know are read by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """One set of prompts. An evaluation set fills in its own keys and its own `eval_max_prompt_len`."""

    prompt_data: tuple[str, ...]
    """Files, folders and data set names, one after the other, each perhaps with a slice; see `locate`."""
    disable_rollout_global_dataset: bool = False
    """There is no prompt data: the table is one blank prompt, asked at every position."""
    input_key: str = USUAL_INPUT_KEY
    """Column of the prompt: text or a list of chat messages. Here and below, dots lead into a column."""
    label_key: str | None = None
    """Column of the ground truth. None: no label, or the one that a schema we know holds."""
    metadata_key: str = "metadata"
    """Column of a dict handed to plug-ins; may be missing."""
    tool_key: str = "tools"
    """Column of tool schemas, a list or its JSON text; may be missing."""
    multimodal_keys: Mapping[str, str] = field(default_factory=dict)
    """`{"image": COLUMN}`: the column whose items stand where the prompt says `<image>`."""
    apply_chat_template: bool = False
    """Make text of messages here. Otherwise messages stay messages, for a custom generate function."""
    apply_chat_template_if_recognised: bool = False
    """Do so in any case for the messages of a schema that needed no keys: nobody had to give a flag for them."""
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking`."""
    rollout_max_prompt_len: int | None = None
    """Prompts with more tokens are left out, and counted."""
