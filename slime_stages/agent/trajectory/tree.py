"""The tree of a session: each node is a chat message, each path from the root a conversation.

A request's messages find their place by equality, so that whatever an agent does with its history (sub-agents,
compaction, edits, retries) becomes a branch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_stages.agent.trajectory.turns import TokenTrail, Turn, TurnRecord

logger = logging.getLogger(__name__)
Message = dict[str, Any]


@dataclass(slots=True, eq=False)
class Node:
    """One message; with a turn, one that the engine wrote."""

    message: Message
    turn: Turn | None = None
    is_rewritten: bool = False
    """The agent replays it in other words: it finds the way for what follows, and is not trained on."""
    children: list[Node] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def is_generated(self) -> bool:
        return self.turn is not None and not self.is_rewritten

    def child(self, message: Message) -> Node | None:
        return next((node for node in self.children if node.message == message), None)


class Tree:
    """The conversations of one session."""

    def __init__(self, fork_threshold: int) -> None:
        self.fork_threshold = fork_threshold
        self._root = Node({})
        self._turn_count = 0

    def record(
        self, record: TurnRecord, prompt: Sequence[Message], response: Message, metadata: dict[str, Any] | None = None
    ) -> None:
        """Add an answer to the conversation that its prompt is, always as a leaf of its own."""
        if not prompt:
            logger.warning("a turn without prompt messages is not recorded")
            return
        node, base, depth = self._walk(prompt)
        if depth < len(prompt) and (rewritten := self._rewritten(node, prompt[depth])) is not None:
            node, base, depth = rewritten, rewritten.turn.trail if rewritten.turn else base, depth + 1
        for message in prompt[depth:]:
            child = Node(message)
            node.children.append(child)
            node = child
        turn = Turn.of(record, number=self._turn_count, base=base, uses_tool=bool(response.get("tool_calls")))
        self._turn_count += 1
        node.children.append(Node(response, turn=turn, metadata=dict(metadata or {})))

    def chains(self) -> Iterator[list[Node]]:
        """The path to each leaf, depth first, branches in the order in which they came."""
        pending: list[tuple[Node, int]] = [(child, 0) for child in reversed(self._root.children)]
        path: list[Node] = []
        while pending:
            node, depth = pending.pop()
            path[depth:] = [node]
            if not node.children:
                yield list(path)
            pending.extend((child, depth + 1) for child in reversed(node.children))

    def _walk(self, prompt: Sequence[Message]) -> tuple[Node, TokenTrail | None, int]:
        """The deepest node that the prompt leads to, the tokens of the last turn before it, and its depth."""
        node, base = self._root, None
        for depth, message in enumerate(prompt):
            child = node.child(message)
            if child is None:
                return node, base, depth
            node, base = child, child.turn.trail if child.turn else base
        return node, base, len(prompt)

    def _rewritten(self, node: Node, message: Message) -> Node | None:
        """The short answer that `message` is another wording of; it is given up for training, and takes that wording.

        None if the message cannot be one, and begins a branch.
        """
        if message.get("role") != "assistant":
            return None
        answers = [child for child in node.children if child.message.get("role") == "assistant"]
        if len(answers) > 1:
            logger.warning("a replayed answer equals none of %d answers: it begins a branch", len(answers))
        if len(answers) != 1:
            return None
        [answer] = answers
        is_short = answer.turn is not None and answer.turn.output_length < self.fork_threshold
        if answer.children or not answer.is_generated or not is_short:
            return None
        answer.message, answer.is_rewritten = message, True
        answer.metadata["merged_rewrite"] = True
        return answer
