"""What a segment was to its agent, guessed from the shape of the session.

`final`: the main agent's last segment. `wipe`: one of its segments that froze when the history was compacted, edited or
asked again. `subagent`: a conversation with other instructions, or one that the main agent waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from slime_stages.agent.trajectory.segments import Chain

SUBAGENT, WIPE, FINAL = "subagent", "wipe", "final"


def kinds_of(chains: Sequence[Chain]) -> list[str]:
    """The kind of each conversation's last segment; those before it are `wipe`, of a sub-agent `subagent`."""
    if not chains:
        return []
    instructions = _main_instructions(chains)
    alike = [chain for chain in chains if _instructions(chain) == instructions]
    main = [chain for chain in alike if not _is_waited_for(chain, alike)]
    final = max(main, key=lambda chain: _numbers(chain)[-1])
    kinds = {id(chain): FINAL if chain is final else WIPE for chain in main}
    return [kinds.get(id(chain), SUBAGENT) for chain in chains]


def _main_instructions(chains: Sequence[Chain]) -> list[Any]:
    """The system messages that last longest: an agent's sub-agents begin after it and end before it."""
    spans: list[tuple[list[Any], int, int]] = []
    for chain in chains:
        numbers, instructions = _numbers(chain), _instructions(chain)
        position = next((i for i, span in enumerate(spans) if span[0] == instructions), len(spans))
        first, last = spans[position][1:] if position < len(spans) else (numbers[0], numbers[-1])
        spans[position : position + 1] = [(instructions, min(first, numbers[0]), max(last, numbers[-1]))]
    return max(spans, key=lambda span: (span[2] - span[1], -span[1]))[0]


def _is_waited_for(chain: Chain, others: Sequence[Chain]) -> bool:
    """Whether another conversation, of which this one is no branch, stood still meanwhile and went on."""
    numbers = _numbers(chain)
    return any(
        before[0] < numbers[0] and before[-1] > numbers[-1] and not set(before) & set(numbers)
        for before in map(_numbers, others)
    )


def _instructions(chain: Chain) -> list[Any]:
    leading = takewhile(lambda node: node.message.get("role") == "system", chain.nodes)
    return [node.message.get("content") for node in leading]


def _numbers(chain: Chain) -> list[int]:
    return [turn.number for turn in chain.turns]
