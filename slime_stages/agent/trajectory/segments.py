"""Linearisation: the turns of a conversation as segments, each one sequence of tokens that can be trained on.

A turn whose prompt repeats what is held goes on in the segment. One that differs within the last answer takes that
answer's place among the tokens that are not trained on, and one that differs before it begins a segment of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slime_stages.agent.trajectory.tree import Node, Tree
from slime_stages.agent.trajectory.turns import Ids, Turn, common_prefix


@dataclass(slots=True)
class Span:
    """Tokens of the response region: an answer, or what stands between answers."""

    ids: Ids
    turn: Turn | None
    """The turn to train on; None: another segment trains on it, or nobody sampled it."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """A leading prompt, and the spans behind it."""

    prompt: Ids
    spans: list[Span] = field(default_factory=list)
    last_turn: Turn
    """The newest turn in it, trained on or not."""

    @property
    def ids(self) -> Ids:
        return np.concatenate([self.prompt, *(span.ids for span in self.spans)])


@dataclass(slots=True, kw_only=True)
class Chain:
    """A conversation from the root to a leaf, and what became of it."""

    nodes: list[Node]
    segments: list[Segment]

    @property
    def turns(self) -> list[Turn]:
        return turns_of(self.nodes)


def linearise(tree: Tree) -> list[Chain]:
    """All conversations of a tree; an answer that several share is trained on in the first one alone."""
    trained: set[int] = set()
    return [
        Chain(nodes=nodes, segments=segments_of(turns_of(nodes), tree.fork_threshold, trained))
        for nodes in tree.chains()
    ]


def segments_of(turns: Iterable[Turn], fork_threshold: int, trained: set[int]) -> list[Segment]:
    """Segments of the turns of a conversation; `trained` are the numbers of turns that are trained on already."""
    segments: list[Segment] = []
    for turn in turns:
        ids = turn.trail.ids()
        prompt, output = ids[: turn.prompt_length], ids[turn.prompt_length :]
        if not segments or not _goes_on(segments[-1], prompt, turn, fork_threshold):
            segments.append(Segment(prompt=prompt, last_turn=turn))
        segments[-1].spans.append(Span(output, None if turn.number in trained else turn))
        trained.add(turn.number)
    return segments


def turns_of(nodes: Sequence[Node]) -> list[Turn]:
    return [node.turn for node in nodes if node.turn is not None and node.is_generated]


def _goes_on(segment: Segment, prompt: Ids, turn: Turn, fork_threshold: int) -> bool:
    """Whether a turn belongs to a segment, which is then brought up to its prompt."""
    held = segment.ids
    shared, kept = common_prefix(held, prompt), len(held)
    if shared < kept:
        last_answer = kept - len(segment.spans[-1].ids)
        if shared < last_answer or turn.output_length >= fork_threshold:
            return False
        segment.spans.pop()
        kept = last_answer
    if kept < len(prompt):
        segment.spans.append(Span(prompt[kept:], None))
    segment.last_turn = turn
    return True
