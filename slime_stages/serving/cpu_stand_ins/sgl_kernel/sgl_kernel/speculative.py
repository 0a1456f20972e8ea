"""Trees of drafted tokens: built, described for their verification, and walked along the tokens that a model chose.

Node 0 is the last certain token; a parent has a smaller number than its children. B sequences have N nodes each.
"""

from __future__ import annotations

import torch

ANCESTORS_ONLY = 1
"""SGLang's `TreeMaskMode.QLEN_ONLY`, the one that it uses on a CPU: the mask is among the nodes, [B, N, N]."""


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected: torch.Tensor,
    verified_lengths: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    node_indices: torch.Tensor,
    first_children: torch.Tensor,
    next_siblings: torch.Tensor,
    topk: int,
    depth: int,
    node_count: int,
    mask_mode: int,
) -> None:
    """Fill in the tree of the candidates `selected` [B, N-1], which are numbered in the order they were drafted.

    Candidate c is one of `topk` that were drafted after candidate `parent_list[b, c // topk]`, or after node 0.
    """
    if mask_mode != ANCESTORS_ONLY:
        raise NotImplementedError(f"a tree's mask in mode {mask_mode}: on a CPU it is among the nodes alone")
    groups = selected // topk
    drafted_after = parent_list.gather(1, groups) if parent_list.shape[1] else groups
    is_parent = selected.unsqueeze(1) == drafted_after.unsqueeze(2)  # [B, child, parent]
    parents = torch.where(groups == 0, 0, is_parent.to(torch.int8).argmax(-1) + 1)
    parents = torch.nn.functional.pad(parents, (1, 0), value=-1)

    sequences = torch.arange(len(parents))
    sees = torch.eye(node_count, dtype=torch.bool).repeat(len(parents), 1, 1)
    for node in range(1, node_count):
        sees[:, node] |= sees[sequences, parents[:, node]]
    tree_mask.view_as(sees).copy_(sees)
    _describe(sees, parents, verified_lengths, positions, node_indices, first_children, next_siblings)


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_lengths: torch.Tensor,
    positions: torch.Tensor,
    node_indices: torch.Tensor,
    first_children: torch.Tensor,
    next_siblings: torch.Tensor,
    batch_size: int,
    node_count: int,
) -> None:
    """Describe trees that are known by their masks, flat [B, N, N]."""
    sees = tree_mask.view(batch_size, node_count, node_count)
    earlier = torch.tril(sees, diagonal=-1)
    parents = torch.where(earlier, torch.arange(node_count), -1).amax(-1)
    _describe(sees, parents, verified_lengths, positions, node_indices, first_children, next_siblings)


def _describe(
    sees: torch.Tensor,
    parents: torch.Tensor,
    verified_lengths: torch.Tensor,
    positions: torch.Tensor,
    node_indices: torch.Tensor,
    first_children: torch.Tensor,
    next_siblings: torch.Tensor,
) -> None:
    """Positions in the sequence, numbers within the batch, and the links along which a tree is walked; -1: none."""
    sequences, nodes = parents.shape
    depths = torch.tril(sees, diagonal=-1).sum(-1)
    positions.copy_((verified_lengths.unsqueeze(1) + depths).flatten())
    node_indices.copy_(torch.arange(sequences * nodes).view(sequences, nodes))
    first_children.fill_(-1)
    next_siblings.fill_(-1)
    every = torch.arange(sequences)
    for node in reversed(range(1, nodes)):
        next_siblings[:, node] = first_children[every, parents[:, node]]
        first_children[every, parents[:, node]] = node


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree as long as a child is the token that the model chose at its parent.

    `predicts` gets the chosen tokens of the walked nodes, `accept_index` the nodes, `accept_token_num` their number
    without node 0. SGLang passes all by name.
    """
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    drafted, chosen = candidates.tolist(), target_predict.tolist()
    for sequence, indices in enumerate(retrive_index.tolist()):
        walked = [0]
        while len(walked) < accept_index.shape[1]:
            child = children[sequence][walked[-1]]
            while child != -1 and drafted[sequence][child] != chosen[sequence][walked[-1]]:
                child = siblings[sequence][child]
            if child == -1:
                break
            walked.append(child)
        numbers = torch.tensor([indices[node] for node in walked], dtype=torch.int32)
        accept_index[sequence, : len(walked)] = numbers
        predicts[numbers] = target_predict[sequence, walked].to(predicts.dtype)
        accept_token_num[sequence] = len(walked) - 1
