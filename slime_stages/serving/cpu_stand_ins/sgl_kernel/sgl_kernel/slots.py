"""Where tokens lie in the cache: slots in the table of requests, and moved rows once a draft is judged.

The arguments are SGLang's: B sequences, each a row `requests[b]` of `req_to_token`.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
) -> None:
    """Enter `slots`, one sequence after the other, as the tokens from `starts` to `ends`."""
    rows, columns = _cells(requests, starts, ends)
    req_to_token[rows, columns] = slots[: len(rows)].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
) -> None:
    """Read the slots of the tokens from `starts` to `ends`, one sequence after the other, to the front of `slots`."""
    rows, columns = _cells(requests, starts, ends)
    slots[: len(rows)] = req_to_token[rows, columns]


def _cells(requests: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the tokens from `starts` to `ends`, one sequence after the other."""
    counts = (ends - starts).long()
    firsts = counts.cumsum(0) - counts
    offsets = torch.arange(int(counts.sum())) - firsts.repeat_interleave(counts)
    return requests.long().repeat_interleave(counts), starts.long().repeat_interleave(counts) + offsets


def assign_draft_cache_locs_contiguous_cpu(
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
    topk: int,
    steps: int,
) -> None:
    """Read the `topk * steps` slots behind each sequence, in which its drafts are written."""
    columns = lengths.unsqueeze(1) + torch.arange(topk * steps)
    slots.copy_(req_to_token[requests.unsqueeze(1), columns].flatten())


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    steps: int,
    row_length: int,
) -> torch.Tensor:
    """A table with a row for each of the `topk` drafts of each sequence: its tokens, then the slots of that draft."""
    table = req_to_token[requests].repeat_interleave(topk, dim=0)
    for row, length in enumerate(lengths.repeat_interleave(topk).tolist()):
        first = length + row % topk * steps
        table[row, length : length + steps] = req_to_token[requests[row // topk], first : first + steps]
    return table


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, stride: int
) -> None:
    """The last token that each sequence got; sequence b's tokens begin at `b * stride`."""
    lasts = torch.arange(len(accept_lens)) * stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[lasts])


def fill_accept_out_cache_loc_cpu(accept_index: torch.Tensor, slots: torch.Tensor, accepted: torch.Tensor) -> None:
    """The slots of the accepted nodes of all trees to the front of `accepted`; -1 is none."""
    found = slots[accept_index[accept_index > -1].long()]
    accepted[: len(found)] = found


def copy_all_layer_kv_cache_cpu(
    addresses: torch.Tensor, row_bytes: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy the rows `sources` to `targets` in the buffers at `addresses`, as if all were read before one is written."""
    if not len(targets):
        return
    to, source = targets.numpy(), sources.numpy()
    row_count = int(max(to.max(), source.max())) + 1
    for address, width in zip(addresses.tolist(), row_bytes.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (row_count * width)).from_address(address)
        rows = np.frombuffer(memory, np.uint8).reshape(row_count, width)
        rows[to] = rows[source]
