"""Speculative decoding on a CPU writes what the engine would have written without it: sampled tokens are sampled.

SGLang takes the likeliest token there, whatever the temperature. Here each node of a drafted tree gets the token that
a decode at its place draws, by the same seed, and a draft is kept as far as it has drawn the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EAGLE = "sglang.srt.speculative.eagle_utils"
ATTENTION = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"

_drawing: list[Callable[[], Any]] = []
"""Draws the tokens of the verification that is under way, if it samples."""


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{EAGLE}.eagle_sample", sample_by_policy, HookType.AROUND)
    HookRegistry.register(f"{EAGLE}.verify_tree_greedy_func", verify_what_was_drawn, HookType.AROUND)
    HookRegistry.register(f"{ATTENTION}._build_extend_metadata", verify_chains_as_trees, HookType.AFTER)


def sample_by_policy(
    original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, *args: Any, **kwargs: Any
) -> Any:
    """SGLang's verification, with tokens drawn once it has applied penalties, biases and grammars to the logits."""
    if batch.forward_mode.is_idle() or batch.sampling_info.is_all_greedy:
        return original(verify_input, batch, logits_output, *args, **kwargs)
    _drawing.append(lambda: draw(logits_output.next_token_logits, batch.sampling_info, verify_input))
    try:
        return original(verify_input, batch, logits_output, *args, **kwargs)
    finally:
        _drawing.pop()


def verify_what_was_drawn(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _drawing:
        kwargs["target_predict"] = _drawing[-1]().view_as(kwargs["target_predict"])
    return original(*args, **kwargs)


def draw(logits: Any, sampling: Any, verify_input: Any) -> Any:
    """A token for every node, [B·N] int64, just as SGLang's sampler draws one for `logits` [B·N, V] in a decode."""
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch, top_k_top_p_min_p_sampling_from_probs_torch

    def of_nodes(of_requests: Any) -> Any:
        return None if of_requests is None else of_requests.repeat_interleave(verify_input.draft_token_num, dim=0)

    probabilities = torch.softmax(logits / of_nodes(sampling.temperatures), dim=-1)
    seeds, positions = of_nodes(sampling.sampling_seed), verify_input.positions
    if not (sampling.need_top_p_sampling or sampling.need_top_k_sampling or sampling.need_min_p_sampling):
        return sampling_from_probs_torch(probabilities, seeds, positions).long()
    return top_k_top_p_min_p_sampling_from_probs_torch(
        probabilities,
        of_nodes(sampling.top_ks),
        of_nodes(sampling.top_ps),
        of_nodes(sampling.min_ps),
        sampling.need_min_p_sampling,
        seeds,
        positions,
    ).long()


def verify_chains_as_trees(metadata: Any, backend: Any, forward_batch: Any) -> Any:
    """A draft without branches keeps its mask, so that its tokens are attended to as in a decode, to the bit."""
    if not forward_batch.forward_mode.is_target_verify():
        return metadata
    *others, _ = metadata
    return (*others, forward_batch.spec_info.custom_mask)
