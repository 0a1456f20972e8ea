"""Llama 2 and 3."""

from __future__ import annotations

from slime_stages.weights.mapping.family import Family

FAMILY = Family(model_type="llama")
