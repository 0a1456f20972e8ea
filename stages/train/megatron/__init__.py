"""Megatron-Core as the trainer: model, packed rows, optimizer steps, checkpoints; on CUDA, or on a CPU with gloo."""

import warnings

# Megatron-Core says at import, and for every layer, which of its optional packages are absent; torch says of calls
# that Megatron-Core makes what will replace them.
for _message in (
    ".*(Apex|Transformer Engine|full scope is deprecated)",
    ".*ShardedTensor",
    ".*torch.distributed.*is deprecated",
    "Converting a tensor with requires_grad",
):
    warnings.filterwarnings("ignore", message=_message)
