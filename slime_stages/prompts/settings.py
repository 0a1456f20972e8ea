"""What prompt data to read, and how: slime's flags of the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """One set of prompts. An evaluation set fills in its own keys and its own `eval_max_prompt_len`."""

    prompt_data: tuple[str, ...]
    """`.jsonl`, `.json` or `.parquet` files, one after the other; `FILE@[a:b]` takes rows a to b-1, as a slice does."""
    input_key: str = "input"
    """Column of the prompt: text or a list of chat messages."""
    label_key: str | None = None
    """Column of the ground truth. None: no label, or the one that verl's schema holds."""
    metadata_key: str = "metadata"
    """Column of a dict handed to plug-ins; may be missing."""
    tool_key: str = "tools"
    """Column of tool schemas, a list or its JSON text; may be missing."""
    apply_chat_template: bool = False
    """Make text of messages here. Otherwise messages stay messages, for a custom generate function."""
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking`."""
    rollout_max_prompt_len: int | None = None
    """Prompts with more tokens are left out, and counted."""
