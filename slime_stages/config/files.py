"""Files that settings name, read when a config is resolved, so that what they say is frozen with it."""

from __future__ import annotations

from slime_stages.config.problems import Problem
from slime_stages.config.roles import read_roles
from slime_stages.config.settings import Settings
from slime_stages.config.types import absolute_path
from slime_stages.config.yaml_files import read_eval_datasets, read_mapping

READ_FROM = {
    "eval_datasets": "eval_config",
    "custom_config": "custom_config_path",
    "megatron_roles": "megatron_config_path",
}
"""Setting → the one whose file it holds."""


def add_files(settings: Settings) -> None:
    """Fill in what the files say, unless it is given already, as in a file that `slime-stages config` printed."""
    for name, origin in READ_FROM.items():
        path = settings.values.get(origin)
        if not isinstance(path, str) or not path:
            continue
        if name in settings.values:
            settings.problems += _problems_of_both(settings, name, origin)
            continue
        if name == "eval_datasets":
            datasets, problems = read_eval_datasets(absolute_path(path))
            settings.problems += problems
            values = {key: value.model_dump(mode="json", exclude_none=True) for key, value in datasets.items()}
        elif name == "megatron_roles":
            path = absolute_path(path)
            values, problems = read_roles(path, read_mapping(path, flag="--megatron-config-path"))
            settings.problems += problems
        else:
            values = read_mapping(absolute_path(path), flag="--custom-config-path")
        settings.put(name, values, f"derived from {origin}")


def _problems_of_both(settings: Settings, name: str, origin: str) -> list[Problem]:
    """A file on the command line is meant to be read; one beside its contents in a config file was."""
    source = settings.sources[origin]
    if not source.startswith("--") or settings.sources[name].startswith("--"):
        return []
    message = f"{origin} ({source}) is not read: {name} ({settings.sources[name]}) stands in its way"
    return [Problem(message=message, hint=f"drop {name} from the config file")]
