"""A program that finds the stand-in's trees to be those of SGLang's Triton kernels, which are interpreted."""

from __future__ import annotations

import random

import sgl_kernel.speculative as ours
import torch
from sglang.kernels.ops.speculative import reconstruct_tree, spec_tree

TREES, NODES, STEPS, TOPK = 50, 8, 4, 3
NOTHING = -1


def compare(source: random.Random) -> None:
    drafts = [draft(source) for _ in range(TREES)]
    parents, selected = (torch.tensor(each) for each in zip(*drafts, strict=True))
    lengths = torch.tensor([source.randrange(5, 90) for _ in drafts])

    built = []
    for build in (spec_tree.sgl_build_tree_kernel_triton, ours.build_tree_kernel_efficient_cpu):
        mask, out = torch.ones(TREES * NODES * NODES, dtype=torch.bool), described()
        build(parents, selected, lengths, mask, *out, TOPK, STEPS, NODES, 1)
        built.append([mask, *out])
    assert all(map(torch.equal, *built))
    mask, _, *links = built[0]

    found = []
    for describe in (
        reconstruct_tree.reconstruct_indices_from_tree_mask_triton,
        ours.reconstruct_indices_from_tree_mask,
    ):
        out = described()
        describe(mask, lengths, *out, TREES, NODES)
        found.append(out)
    assert all(map(torch.equal, *found))

    drafted, chosen = (torch.tensor([[source.randrange(3) for _ in range(NODES)] for _ in drafts]) for _ in range(2))
    verified = []
    for walk in (spec_tree.verify_tree_greedy_triton, ours.verify_tree_greedy_cpu):
        tokens = torch.zeros(TREES * NODES, dtype=torch.int32)
        nodes = torch.full((TREES, STEPS + 1), NOTHING, dtype=torch.int32)
        counts = torch.zeros(TREES, dtype=torch.int32)
        walk(tokens, nodes, counts, drafted, *links, chosen)
        verified.append([tokens, nodes, counts])
    assert all(map(torch.equal, *verified))
    assert int(counts.max()) >= 2


def draft(source: random.Random) -> tuple[list[int], list[int]]:
    """As EAGLE drafts: TOPK after the certain token, then TOPK after each of TOPK of the last step; some stay."""
    parents, candidates = [NOTHING], TOPK
    for step in range(1, STEPS):
        first = 0 if step == 1 else TOPK + (step - 2) * TOPK * TOPK
        parents += sorted(source.sample(range(first, candidates), TOPK))
        candidates += TOPK * TOPK
    selected: list[int] = []
    while len(selected) < NODES - 1:
        new = source.randrange(candidates)
        if new not in selected and (new < TOPK or parents[new // TOPK] in selected):
            selected.append(new)
    return parents, sorted(selected)


def described() -> list[torch.Tensor]:
    """Room for positions, numbers, first children and next siblings."""
    return [torch.full((TREES * NODES,), NOTHING), *(torch.full((TREES, NODES), NOTHING) for _ in range(3))]


if __name__ == "__main__":
    compare(random.Random(0))
