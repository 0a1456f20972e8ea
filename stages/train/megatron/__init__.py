"""Megatron-Core as the trainer: model, packed rows, optimizer steps, checkpoints; on CUDA, or on a CPU with gloo."""

import warnings

# Megatron-Core says at import, and for every layer, which of its optional packages are absent.
warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|full scope is deprecated)", module=r"megatron\.")
