"""The smallest config that resolves, for tests to add to."""

from __future__ import annotations

from typing import Any

from slime_stages.config import ResolvedConfig, resolve

SMALLEST: dict[str, Any] = {"hf_checkpoint": "/model", "prompt_data": "/prompts.jsonl", "rollout_batch_size": 4}


def resolved(**settings: Any) -> ResolvedConfig:
    return resolve(None, SMALLEST | settings)
