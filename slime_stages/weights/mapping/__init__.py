"""Hugging Face <-> Megatron-Core parameters: families, names, layouts, shards."""
