"""Whether the reward types of a config can score, found out before anything is queued."""

from __future__ import annotations

from slime_stages.config import Config
from slime_stages.errors import MissingInputError, UsageError
from slime_stages.rewards.graders.ifbench import NotInstalled, check_data
from slime_stages.rewards.hub import bare_type, find_reward_type


def check_reward_types(config: Config) -> list[str]:
    """UsageError for a type that there is not, MissingInputError for one whose data is not here.

    Returns a sentence for each whose package is not here: the environment of the reward stage may be another one.
    """
    unchecked = []
    for source, reward_type in _named(config).items():
        try:
            find_reward_type(reward_type)
            if bare_type(reward_type) == "ifbench":
                check_data()
        except NotInstalled as error:
            unchecked.append(f"{source}: {error.message}; it is not checked before the reward stage")
        except (UsageError, MissingInputError) as error:
            raise type(error)(f"{source}: {error.message}", hint=error.hint) from error
    return unchecked


def _named(config: Config) -> dict[str, str]:
    """Reward types by where the config names them."""
    found = {"rm_type": config.reward.rm_type}
    found |= {f"rm_type of the data set {name}": dataset.rm_type for name, dataset in config.eval.datasets}
    return {source: reward_type for source, reward_type in found.items() if reward_type}
