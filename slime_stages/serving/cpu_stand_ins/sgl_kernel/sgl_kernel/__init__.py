"""Kernels of SGLang's that a server without a GPU needs, in torch: of its kernel package no CPU build is published.

Seeded sampling is whole, and speculative decoding but for EAGLE's heads of several layers. SGLang imports further
`*_cpu` names, which raise once they are called. As `convert_weight_packed` is missing, it falls back to torch's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.murmur import murmur_hash32_cpu
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.speculative import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "murmur_hash32_cpu",
    "verify_tree_greedy_cpu",
]


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}: no CPU build of sgl_kernel is installed")

    return missing
