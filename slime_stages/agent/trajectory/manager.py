"""The trajectories of all sessions: turns go in as they happen, samples come out once, when a session is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime_stages.agent.trajectory.kinds import SUBAGENT, WIPE, kinds_of
from slime_stages.agent.trajectory.samples import sample_of, split_reward
from slime_stages.agent.trajectory.segments import Chain, linearise
from slime_stages.agent.trajectory.tree import Message, Tree
from slime_stages.agent.trajectory.turns import TurnRecord
from slime_stages.sample import Sample

DEFAULT_FORK_THRESHOLD = 1024


class TrajectoryManager:
    """One tree of messages for each session.

    An answer shorter than `fork_threshold_tokens` may be given up for training so that a conversation stays one sample;
    0: never.
    """

    def __init__(
        self,
        fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD,
        *,
        expert_shape: tuple[int, int] | None = None,
    ) -> None:
        self.fork_threshold_tokens = fork_threshold_tokens
        self.expert_shape = expert_shape
        """Layers and experts per token, where turns tell of the router's choices."""
        self._trees: dict[str, Tree] = {}

    def record_turn(
        self,
        sid: str,
        turn: TurnRecord,
        prompt_messages: Sequence[Message],
        response_message: Message,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Add an answer that the agent has received."""
        tree = self._trees.setdefault(sid, Tree(self.fork_threshold_tokens))
        tree.record(turn, prompt_messages, response_message, metadata)

    def get_trajectory(
        self,
        sid: str,
        *,
        base_sample: Sample,
        reward: float | dict[str, Any] | None = 0.0,
        extra_metadata: Mapping[str, Any] | None = None,
        max_sample_tokens: int = 0,
        split: bool = False,
    ) -> list[Sample]:
        """The samples of a session, which is forgotten; [] for one that is not known.

        `max_sample_tokens` cuts each on the right (0: nowhere). Each has the whole reward, or with `split` its share.
        """
        tree = self._trees.pop(sid, None)
        chains = linearise(tree) if tree is not None else []
        samples = []
        for chain, kind in zip(chains, kinds_of(chains), strict=True):
            for segment in chain.segments:
                is_frozen = segment is not chain.segments[-1] and kind != SUBAGENT
                metadata = {**(extra_metadata or {}), **_facts(chain), "segment": WIPE if is_frozen else kind}
                sample = sample_of(
                    segment, base_sample, metadata, max_tokens=max_sample_tokens, expert_shape=self.expert_shape
                )
                if sample is not None:
                    sample.reward = dict(reward) if isinstance(reward, dict) else reward
                    samples.append(sample)
        if split:
            split_reward(samples)
        return samples

    def drop_session(self, sid: str) -> None:
        self._trees.pop(sid, None)


def _facts(chain: Chain) -> dict[str, bool]:
    turns = chain.turns
    constrained = {"constrained": True} if any(turn.is_constrained for turn in turns) else {}
    return {
        **constrained,
        "truncated": turns[-1].finish_reason == "length",
        "use_tool": any(turn.uses_tool for turn in turns),
        "ill_formed": any(turn.ill_formed for turn in turns),
    }
