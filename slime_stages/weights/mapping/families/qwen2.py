"""Qwen 2 and 2.5."""

from __future__ import annotations

from slime_stages.weights.mapping.family import Family

FAMILY = Family(model_type="qwen2", has_query_key_value_biases=lambda config: True)
