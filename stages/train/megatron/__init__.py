"""The trainer: Megatron-Core on CUDA, and on a machine without it."""
