"""Qwen 3, dense."""

from __future__ import annotations

from slime_stages.weights.mapping.family import Family

FAMILY = Family(model_type="qwen3", has_query_key_norms=True)
