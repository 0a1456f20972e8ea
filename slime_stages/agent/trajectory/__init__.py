"""What an agent's conversations become: a tree of messages by session, and the samples that its branches are."""

from slime_stages.agent.trajectory.manager import DEFAULT_FORK_THRESHOLD, TrajectoryManager
from slime_stages.agent.trajectory.turns import TurnRecord

__all__ = ["DEFAULT_FORK_THRESHOLD", "TrajectoryManager", "TurnRecord"]
