"""Hugging Face <-> Megatron-Core parameters of dense Llama and Qwen models: names, layouts, tensor-parallel shards."""
