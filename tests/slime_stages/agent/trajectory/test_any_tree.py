"""Whatever an agent does with its history: what is trained on was sampled, once, and with these log-probs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_stages.agent.trajectory.turns import TokenTrail
from tests.slime_stages.agent.trajectory.conversations import Session

FIRST_SAMPLED = 1000
"""Sampled tokens are numbered from here on, each one once; all others are smaller."""


@dataclass
class Agent:
    """An agent that remembers every conversation that it has had, and goes on from any of them, changed or not."""

    session: Session
    histories: list[tuple[list[str], list[int]]] = field(default_factory=lambda: [([], [])])
    log_probs: dict[int, float] = field(default_factory=dict)
    heads: set[tuple[str, ...]] = field(default_factory=set)

    def ask(self, start: int, words: list[str], edit: int | None, output_length: int) -> None:
        words_before, tokens = self.histories[start % len(self.histories)]
        messages, prompt = list(words_before), list(tokens)
        if edit is not None and messages:
            messages[edit % len(messages)] += "!"
            prompt[edit % len(prompt)] = 999
        messages += words or ["U again"]
        prompt += [len(word) for word in words] or [7]
        sampled = [FIRST_SAMPLED + len(self.log_probs) + number for number in range(output_length)]
        self.log_probs |= {token: -token / 1e6 for token in sampled}
        answer = f"A answer {len(self.histories)}"
        log_probs = [self.log_probs[token] for token in sampled]
        self.session.turn(messages, prompt, answer, sampled, log_probs=log_probs)
        self.histories.append(([*messages, answer], [*prompt, *sampled]))


moves = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.lists(st.sampled_from(["U a", "U b", "T c", "S d", "A given"]), max_size=2),
        st.none() | st.integers(0, 8),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(moves, st.sampled_from([0, 2, 1024]), st.sampled_from([0, 3, 12]))
def test_each_sampled_token_is_trained_on_at_most_once_and_no_other_ever(
    moves: list[tuple[int, list[str], int | None, int]], threshold: int, limit: int
) -> None:
    agent = Agent(Session(fork_threshold_tokens=threshold))
    for move in moves:
        agent.ask(*move)

    samples = agent.session.samples(max_sample_tokens=limit)

    trained: Counter[int] = Counter()
    for sample in samples:
        sample.check_lengths()
        assert sample.loss_mask is not None
        assert sample.rollout_log_probs is not None
        assert any(sample.loss_mask)
        assert sample.response_length == len(sample.loss_mask) < len(sample.tokens)
        assert not limit or len(sample.tokens) <= limit
        response = sample.tokens[-sample.response_length :]
        for token, mask, log_prob in zip(response, sample.loss_mask, sample.rollout_log_probs, strict=True):
            assert log_prob == (agent.log_probs[token] if mask else 0.0)
            trained.update([token] if mask else [])
    assert set(trained.values()) <= {1}
    assert {sample.metadata["segment"] for sample in samples} <= {"final", "wipe", "subagent"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 2), max_size=5)), min_size=1, max_size=8))
def test_tokens_kept_as_differences_are_the_tokens(steps: list[tuple[int, list[int]]]) -> None:
    trail, whole = None, np.zeros(0, np.int32)
    for kept, more in steps:
        whole = np.array([*whole[:kept], *more], np.int32)
        trail = TokenTrail(whole, trail)
        assert trail.ids().tolist() == whole.tolist()


def test_a_long_conversation_takes_memory_by_its_tokens_not_by_their_square() -> None:
    session, history, prompt = Session(), ["U q"], [1]
    for number in range(200):
        answer = f"A {number}"
        session.turn(history, prompt, answer, [number + 10] * 50)
        history, prompt = [*history, answer, "T r"], [*prompt, *[number + 10] * 50, 3]

    tree = session.manager._trees["s"]
    [chain] = tree.chains()
    trails = [node.turn.trail for node in chain if node.turn is not None]
    assert sum(len(trail._rest) for trail in trails) == len(trails[-1].ids()) == 200 * 51
