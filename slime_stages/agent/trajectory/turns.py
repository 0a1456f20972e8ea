"""Turns: what the engine was asked and what it sampled, as recorded and as kept.

The prompt of a turn nearly always repeats the turn before it, so what is kept is the difference: a session's memory
grows with its tokens, not with their square.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime_stages.sample import int32_array

Ids = NDArray[np.int32]
Rows = NDArray[np.int32]
"""The router's choices, one flat row for each position."""
KEPT_META = re.compile("weight_versions?|prompt_tokens|cached_tokens|completion_tokens|spec_.*|top_p_token_.*")
"""What samples take of the engine's `meta_info` as it is."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answer of the engine. Shapes: P prompt tokens, O output tokens."""

    prompt_ids: Sequence[int]
    """[P] the whole history as it was sent."""
    output_ids: Sequence[int]
    """[O] as sampled."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    output_log_probs: Sequence[float] | None = None
    """[O] natural log."""
    ill_formed: bool = False
    """The output holds a tool call that cannot be read."""
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    """What else the engine says of the answer."""
    is_constrained: bool = False
    """A grammar held the output: log-probs are among what it allowed."""


class TokenTrail:
    """The tokens of a turn and the router's choices for them: an earlier trail's as far as both agree, and the rest.

    What was chosen when a token was sampled stands; a later turn that reads it again chooses for new positions alone.
    """

    __slots__ = ("_base", "_rest", "_rest_rows", "_shared", "_shared_rows")

    def __init__(self, ids: Ids, base: TokenTrail | None = None, rows: Rows | None = None) -> None:
        self._base = base
        self._shared = common_prefix(base.ids(), ids) if base is not None else 0
        self._rest = ids[self._shared :].copy()
        held = base.rows() if base is not None and rows is not None else None
        self._shared_rows = min(self._shared, len(held)) if held is not None else 0
        self._rest_rows = rows[self._shared_rows :].copy() if rows is not None else None

    def ids(self) -> Ids:
        pieces = [self._rest]
        for trail, kept in self._bases(self._shared):
            pieces.append(trail._rest[: max(0, kept - trail._shared)])
        return np.concatenate(pieces[::-1])

    def rows(self) -> Rows | None:
        """[T-1, L·K] of T tokens, L layers and K experts for each; None if the engine did not tell them."""
        if self._rest_rows is None:
            return None
        pieces = [self._rest_rows]
        for trail, kept in self._bases(self._shared_rows):
            assert trail._rest_rows is not None
            pieces.append(trail._rest_rows[: max(0, kept - trail._shared_rows)])
        return np.concatenate(pieces[::-1])

    def _bases(self, kept: int) -> Iterator[tuple[TokenTrail, int]]:
        """Earlier trails, newest first, each with how many of its items are still in this one."""
        trail = self._base
        while trail is not None and kept:
            yield trail, kept
            kept = min(kept, trail._shared)
            trail = trail._base


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn as kept."""

    number: int
    """Counts the turns of a session in the order of their recording."""
    trail: TokenTrail
    prompt_length: int
    log_probs: NDArray[np.float64]
    """[O] natural log; 0.0 where the record has none."""
    finish_reason: str
    uses_tool: bool
    ill_formed: bool
    is_constrained: bool
    meta_info: Mapping[str, Any]

    @staticmethod
    def of(record: TurnRecord, *, number: int, base: TokenTrail | None, uses_tool: bool) -> Turn:
        output_length, log_probs = len(record.output_ids), record.output_log_probs
        assert log_probs is None or len(log_probs) == output_length, (len(log_probs), output_length)
        ids = np.fromiter([*record.prompt_ids, *record.output_ids], np.int32)
        return Turn(
            number=number,
            trail=TokenTrail(ids, base, _expert_rows(record.meta_info.get("routed_experts"), len(ids))),
            prompt_length=len(record.prompt_ids),
            log_probs=np.array(log_probs, np.float64) if log_probs is not None else np.zeros(output_length),
            finish_reason=record.finish_reason,
            uses_tool=uses_tool,
            ill_formed=record.ill_formed,
            is_constrained=record.is_constrained,
            meta_info={key: value for key, value in record.meta_info.items() if KEPT_META.fullmatch(key)},
        )

    @property
    def output_length(self) -> int:
        return len(self.log_probs)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """[O] False for a token that a grammar left alone: its log-prob is 0, whatever the model thought of it."""
        return self.log_probs != 0.0 if self.is_constrained else np.ones(self.output_length, np.bool_)


def _expert_rows(encoded: Any, length: int) -> Rows | None:
    if encoded is None or length < 2:
        return None
    return int32_array(encoded).reshape(length - 1, -1)


def common_prefix(first: Ids, second: Ids) -> int:
    """How many ids both begin with."""
    shorter = min(len(first), len(second))
    differing = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(differing[0]) if differing.size else shorter
