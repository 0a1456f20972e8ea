"""Conversations in short: messages by a letter, turns by their ids."""

from __future__ import annotations

from typing import Any

from slime_stages.agent.trajectory import TrajectoryManager, TurnRecord
from slime_stages.sample import Sample

LOG_PROB = -0.5


def message(word: str) -> dict[str, Any]:
    """`U hello`, `A x`, `T result`, `S rules`: a role and the content."""
    role, _, content = word.partition(" ")
    return {"role": {"U": "user", "A": "assistant", "T": "tool", "S": "system"}[role], "content": content}


class Session:
    """One session, recorded turn by turn."""

    def __init__(self, **settings: Any) -> None:
        self.manager = TrajectoryManager(**settings)

    def turn(
        self,
        history: list[str],
        prompt: list[int],
        answer: str,
        output: list[int],
        *,
        finish: str = "stop",
        **more: Any,
    ) -> Session:
        log_probs = more.pop("log_probs", [LOG_PROB] * len(output))
        record = TurnRecord(prompt, output, finish, log_probs, **more)
        self.manager.record_turn("s", record, [message(word) for word in history], message(answer))
        return self

    def samples(self, **options: Any) -> list[Sample]:
        options.setdefault("reward", 1.0)
        base = options.pop("base_sample", Sample(index=4, group_index=2))
        return self.manager.get_trajectory("s", base_sample=base, **options)


def shown(samples: list[Sample]) -> list[tuple[list[int], list[int] | None]]:
    """Tokens and loss mask of each."""
    return [(sample.tokens, sample.loss_mask) for sample in samples]
