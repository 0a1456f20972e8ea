"""SGLang plug-in for a CPU: `--enable-deterministic-inference` and `--enable-return-routed-experts` work, and the
server starts in half the time.

SGLang finds it by its entry point in every process of the server. Torch's attention works one sequence at a time and
so does not depend on the batch; products of matrices do, which `enable_batch_invariant_mode` mends.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

ROW_MULTIPLE = 8
"""MKL computes few or odd rows in other ways; from this multiple on, a row's bits do not depend on the other rows."""

BACKEND = "torch_native"
HOST_MEMORY = "sglang.srt.mem_cache.pool_host.common"
ATTENTION = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
SAMPLER = "sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch"
PREFILL = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"


def register() -> None:
    """Called by SGLang at the start of each of its processes."""
    sys.modules.setdefault("megatron", None)  # type: ignore[arg-type]  # SGLang's debug dumper would import it

    import slime_stages_encoding
    import slime_stages_speculation
    from sglang.srt.arg_groups.choices import (
        add_deterministic_attention_backend_choices,
        add_radix_supported_deterministic_attention_backend_choices,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_deterministic_attention_backend_choices([BACKEND])
    add_radix_supported_deterministic_attention_backend_choices([BACKEND])
    HookRegistry.register(
        "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", enable_batch_invariant_mode, HookType.REPLACE
    )
    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", start_processes_by_fork, HookType.AFTER)
    HookRegistry.register(SAMPLER, draw_by_token, HookType.AROUND)
    HookRegistry.register(f"{HOST_MEMORY}._cuda_host_register", leave_unregistered, HookType.REPLACE)
    HookRegistry.register(f"{PREFILL}._send_kv_chunk", send_from_plain_memory, HookType.BEFORE)
    HookRegistry.register(f"{ATTENTION}._run_sdpa_forward_decode", decode_by_length, HookType.AROUND)
    slime_stages_encoding.register()
    slime_stages_speculation.register()


def start_processes_by_fork(result: object, *args: object) -> object:
    """Scheduler and detokenizer start with what is imported already; SGLang spawns them for the sake of GPUs."""
    multiprocessing.set_start_method("fork", force=True)
    return result


def leave_unregistered(buffer: object, registration_granularity_bytes: int | None = None) -> None:
    """Host memory, such as that for the experts of each token, needs no device to know of it where there is none."""


def send_from_plain_memory(scheduler: object, request: Any, *args: object, **kwargs: object) -> None:
    """Page numbers are handed to the transfer as they are; on a GPU they go through pinned memory first."""
    request.disagg_kv_sender.supports_host_tensor_indices = False


def enable_batch_invariant_mode(enable_bmm: bool = True) -> None:
    """Pad the rows of every two-dimensional product, so that a request's numbers do not depend on its companions."""
    import torch

    functional: Any = torch.nn.functional
    functional.linear = pad_rows(functional.linear)
    torch.matmul = pad_rows(torch.matmul)
    torch.mm = pad_rows(torch.mm)


def pad_rows(product: Callable[..., Any]) -> Callable[..., Any]:
    """`product` over the rows of its first argument, computed at the next multiple of `ROW_MULTIPLE` rows."""
    import torch

    @functools.wraps(product)
    def padded(rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        missing = -rows.shape[0] % ROW_MULTIPLE if rows.dim() == 2 else 0
        if not missing or kwargs.get("out") is not None:
            return product(rows, *args, **kwargs)
        longer = torch.nn.functional.pad(rows, (0, 0, 0, missing))
        return product(longer, *args, **kwargs)[: rows.shape[0]]

    return padded


def draw_by_token(
    original: Callable[..., Any],
    probabilities: Any,
    top_ks: Any,
    top_ps: Any,
    min_ps: Any,
    needs_min_p: bool,
    seeds: Any,
    positions: Any,
    **kwargs: Any,
) -> Any:
    """A seeded draw among the tokens that top-k, top-p and min-p leave, with the noise that each has without them.

    SGLang filters all requests of a batch if one asks for it, and its noise would then go by a token's rank.
    """
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    if seeds is None or kwargs.get("return_filtered_probs"):
        return original(probabilities, top_ks, top_ps, min_ps, needs_min_p, seeds, positions, **kwargs)
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.arange(ordered.shape[-1]) < top_ks.view(-1, 1)
    kept &= (before <= top_ps.view(-1, 1)) | (top_ps.view(-1, 1) >= 1)
    if needs_min_p:
        kept &= ordered >= ordered[:, :1] * min_ps.view(-1, 1)
    left = torch.zeros_like(probabilities).scatter_(-1, order, ordered * kept)
    return sampling_from_probs_torch(left, seeds, positions)


def decode_by_length(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of one new token a sequence: all sequences of one length at once, with the same bits as one by one."""
    from sgl_kernel.attention import attend_by_length

    query, output, keys, values, req_to_token, requests, lengths, *encoder_lengths = args
    window = kwargs.get("sliding_window_size")
    plain = keys.dtype == values.dtype == query.dtype and not kwargs.get("is_cross_attn") and window in (None, -1)
    if not plain or any(length is not None for length in encoder_lengths):
        return original(backend, *args, **kwargs)
    attend_by_length(query, output, keys, values, req_to_token, requests, lengths, kwargs.get("scaling"))
    return output
