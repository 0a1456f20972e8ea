"""Qwen's models that see images, on a CPU: the module that prepares their images can be imported."""

from __future__ import annotations

NAMED_AT_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
"""Operators of Qwen3.5, whose module the one that prepares images for all Qwen-VL models imports."""


def register() -> None:
    import torch

    for name in NAMED_AT_IMPORT:
        if not hasattr(torch.ops.sgl_kernel, name):
            torch.library.define(f"sgl_kernel::{name}", "(Tensor input) -> Tensor")  # a name alone: a call of it fails
