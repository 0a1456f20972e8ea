"""SLURM's short form for lists of nodes."""

from __future__ import annotations

import re

ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
"""Commas separate nodes, but for those in brackets."""


def expand_nodes(text: str) -> list[str]:
    """`a[01-03,7],b` is a01, a02, a03, a7, b."""
    return [node for item in ITEM.findall(text) for node in _expand_item(item)]


def _expand_item(item: str) -> list[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    listed, _, after = rest.partition("]")
    endings = _expand_item(after)
    return [f"{before}{number}{ending}" for number in _numbers(listed) for ending in endings]


def _numbers(listed: str) -> list[str]:
    numbers = []
    for part in listed.split(","):
        first, dash, last = part.partition("-")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)] if dash else [first]
    return numbers
