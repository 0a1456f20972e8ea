"""Attention over the cache of keys and values, for SGLang's CPU backend.

A token that is written or verified attends to just the tokens before it, as a sequence of its own: its bits are the
same in a decode and in the verification of any draft, whatever runs beside it.

Letters: T new tokens, H heads of queries, K heads of keys and values, D head size, S slots of the cache, B sequences.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch


def attend_by_length(
    query: torch.Tensor,
    output: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    scale: float | None,
) -> None:
    """Attention of token t to the slots `table[rows[t], :lengths[t]]`: all tokens of one length at once.

    Shapes: `query` and `output` [T, H, D], `keys` and `values` [S, K, D], `rows` and `lengths` [T].
    """
    tokens_by_length = defaultdict(list)
    for token, length in enumerate(lengths.tolist()):
        tokens_by_length[length].append(token)
    for length, tokens in tokens_by_length.items():
        slots = table[rows[tokens], :length]
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[tokens].unsqueeze(2),
            keys[slots].transpose(1, 2),
            values[slots].transpose(1, 2),
            enable_gqa=query.shape[1] != keys.shape[1],
            scale=scale,
        )
        output[tokens] = attended.squeeze(2)


def decode_attention_cpu(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scale: float,
    value_scale: float,
    output: torch.Tensor,
    new_keys: torch.Tensor | None,
    new_values: torch.Tensor | None,
    new_slots: torch.Tensor,
    scratch: torch.Tensor,
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    logit_cap: float,
    is_cross_attention: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """One new token a sequence; its keys and values are stored first, unless they are None."""
    _refuse(logit_cap=logit_cap, is_cross_attention=is_cross_attention, window=window, sinks=sinks)
    if new_keys is not None and new_values is not None:
        keys[new_slots] = new_keys.view(-1, *keys.shape[1:])
        values[new_slots] = new_values.view(-1, *values.shape[1:])
    attend_by_length(query, output, keys, values, req_to_token, requests, lengths, scale)


def extend_attention_cpu(
    query: torch.Tensor,
    new_keys: torch.Tensor | None,
    new_values: torch.Tensor | None,
    output: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    new_lengths: torch.Tensor,
    starts: torch.Tensor,
    most_new: int,
    scale: float,
    logit_cap: float,
    is_cross_attention: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens a sequence, stored already; `lengths` [B] count them.

    With `tree`, flat [B, N, N], each sequence has N new tokens and token i sees the new tokens j of `tree[b, i, j]`.
    """
    _refuse(logit_cap=logit_cap, is_cross_attention=is_cross_attention, window=window, sinks=sinks)
    if tree is not None:
        table, path_lengths = _paths(req_to_token, requests, lengths, tree.view(len(requests), most_new, most_new))
        every_row = torch.arange(len(table))
        attend_by_length(query, output, keys, values, table, every_row, path_lengths, scale)
        return
    sequences = zip(requests.tolist(), lengths.tolist(), new_lengths.tolist(), starts.tolist(), strict=True)
    for request, length, count, start in sequences:
        slots = req_to_token[request, :length]
        # A row's bits depend on its place: it has the same one whether or not its prefix was in the cache.
        whole = query.new_zeros(query.shape[1], length, query.shape[2])
        whole[:, length - count :] = query[start : start + count].transpose(0, 1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            whole.unsqueeze(0),
            keys[slots].transpose(0, 1).unsqueeze(0),
            values[slots].transpose(0, 1).unsqueeze(0),
            is_causal=is_causal,
            enable_gqa=query.shape[1] != keys.shape[1],
            scale=scale,
        )
        output[start : start + count] = attended[0, :, length - count :].transpose(0, 1)


def _paths(
    req_to_token: torch.Tensor, requests: torch.Tensor, lengths: torch.Tensor, tree: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The slots that each node of each tree sees, [B·N, most], and how many they are, [B·N]."""
    nodes = tree.shape[1]
    path_lengths = (lengths - nodes).unsqueeze(1) + tree.sum(-1)
    seen_first = torch.argsort(tree.to(torch.int8), dim=-1, descending=True, stable=True)
    table = req_to_token.new_zeros(*tree.shape[:2], int(lengths.max()))
    for sequence, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots, prefix = req_to_token[request, :length], length - nodes
        table[sequence, :, :prefix] = slots[:prefix]
        table[sequence, :, prefix:length] = slots[prefix:][seen_first[sequence]]
    return table.flatten(0, 1), path_lengths.flatten()


def _refuse(*, logit_cap: float, is_cross_attention: bool, window: int, sinks: torch.Tensor | None) -> None:
    if logit_cap > 0 or is_cross_attention or window > 0 or sinks is not None:
        found = f"{logit_cap=} {is_cross_attention=} {window=} sinks={sinks is not None}"
        raise NotImplementedError(f"without a CPU build of sgl_kernel attention is plain, not {found}")


_LIBRARY: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "decode_attention_cpu(Tensor query, Tensor(a!) keys, Tensor(b!) values, float key_scale, float value_scale, "
    "Tensor(c!) output, Tensor? new_keys, Tensor? new_values, Tensor new_slots, Tensor(d!) scratch, "
    "Tensor req_to_token, Tensor requests, Tensor lengths, float scale, float logit_cap, bool is_cross_attention, "
    "int window, Tensor? encoder_lengths, Tensor? sinks) -> ()"
)
_LIBRARY.define(
    "extend_attention_cpu(Tensor query, Tensor? new_keys, Tensor? new_values, Tensor(a!) output, Tensor keys, "
    "Tensor values, float key_scale, float value_scale, Tensor req_to_token, Tensor requests, Tensor lengths, "
    "Tensor new_lengths, Tensor starts, int most_new, float scale, float logit_cap, bool is_cross_attention, "
    "int window, Tensor? encoder_lengths, Tensor? sinks, Tensor? tree, bool is_causal) -> ()"
)
_LIBRARY.impl("decode_attention_cpu", decode_attention_cpu, "CPU")
_LIBRARY.impl("extend_attention_cpu", extend_attention_cpu, "CPU")
