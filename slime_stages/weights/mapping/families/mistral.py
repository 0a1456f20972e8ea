"""Mistral, whose layers are Llama's unless attention has a window."""

from __future__ import annotations

from slime_stages.weights.mapping.family import Family

FAMILY = Family(
    model_type="mistral",
    unsupported=lambda config: {
        f"sliding_window {config.get('sliding_window')}": config.get("sliding_window") is not None
    },
)
