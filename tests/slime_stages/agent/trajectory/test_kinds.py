"""Which segment is the main agent's last, which froze, and which a sub-agent's."""

from __future__ import annotations

import pytest

from tests.slime_stages.agent.trajectory.conversations import Session

Turns = list[tuple[list[str], str]]


def kinds(turns: Turns) -> dict[str, str]:
    """The kind of each sample, by the last answer in it; the n-th turn answers with token 100 + n."""
    session = Session()
    tokens: dict[str, int] = {}
    for number, (history, answer) in enumerate(turns):
        prompt = [tokens.setdefault(word, len(tokens) + 1) for word in history]
        tokens[answer] = 100 + number
        session.turn(history, prompt, answer, [100 + number])
    return {turns[sample.tokens[-1] - 100][1]: sample.metadata["segment"] for sample in session.samples()}


CASES: dict[str, tuple[Turns, dict[str, str]]] = {
    "one conversation": (
        [(["S m", "U q"], "A 1"), (["S m", "U q", "A 1", "T r"], "A 2")],
        {"A 2": "final"},
    ),
    "a compaction": (
        [(["S m", "U q"], "A 1"), (["S m", "U q", "A 1", "T r"], "A 2"), (["S m", "U summary"], "A 3")],
        {"A 2": "wipe", "A 3": "final"},
    ),
    "a sub-agent with instructions of its own, which answers last": (
        [(["S m", "U q"], "A 1"), (["S sub", "U go"], "A 2"), (["S m", "U q", "A 1", "T r"], "A 3")],
        {"A 2": "subagent", "A 3": "final"},
    ),
    "a sub-agent that the main agent waited for": (
        [(["U q"], "A 1"), (["U go"], "A 2"), (["U go", "A 2", "T s"], "A 3"), (["U q", "A 1", "T r"], "A 4")],
        {"A 3": "subagent", "A 4": "final"},
    ),
    "a title that is asked for before anything else": (
        [(["S title", "U q"], "A 1"), (["S m", "U q"], "A 2"), (["S m", "U q", "A 2", "T r"], "A 3")],
        {"A 1": "subagent", "A 3": "final"},
    ),
    "conversations that stand within others of two more kinds": (
        [
            (["S x", "U q"], "A 1"),
            (["S m", "U a"], "A 2"),
            (["S x", "U q", "A 1", "T r"], "A 3"),
            (["S y", "U q"], "A 4"),
            (["S m", "U b"], "A 5"),
            (["S y", "U q", "A 4", "T r"], "A 6"),
        ],
        {"A 2": "wipe", "A 3": "subagent", "A 5": "final", "A 6": "subagent"},
    ),
    "a system message within a conversation that is compacted": (
        [(["S m", "U q", "S now", "U r"], "A 1"), (["S m", "U summary"], "A 2")],
        {"A 1": "wipe", "A 2": "final"},
    ),
    "an answer that is asked for again": (
        [(["U q"], "A 1"), (["U q", "A 1", "T r"], "A 2"), (["U q", "A 1", "T other"], "A 3")],
        {"A 2": "wipe", "A 3": "final"},
    ),
    "two sub-agents side by side, and a compaction": (
        [
            (["S m", "U q"], "A 1"),
            (["S sub", "U a"], "A 2"),
            (["S sub", "U b"], "A 3"),
            (["S sub", "U a", "A 2", "T r"], "A 4"),
            (["S m", "U q", "A 1", "T r"], "A 5"),
            (["S m", "U summary"], "A 6"),
        ],
        {"A 3": "subagent", "A 4": "subagent", "A 5": "wipe", "A 6": "final"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kind_of_each_segment(name: str) -> None:
    turns, expected = CASES[name]

    assert kinds(turns) == expected
