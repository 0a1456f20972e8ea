"""Rewards under other names: samples of a run scored again, beside the rewards that it was made with.

A name has settings of its own, frozen in `rewards/NAME.json`: those of [reward] that differ from the run's. What they
give is the output of a stage `reward-NAME`, with manifests as any other. An iteration's training reads the run's own
rewards unless `reward.json` in its folder names others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from slime_stages.config import Config
from slime_stages.config.sections.reward import Reward
from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.run.commit import create_file, replace_file
from slime_stages.run.digest import sealed, unsealed
from slime_stages.run.rundir import RunDir

OWN = "reward"
"""The stage of the run's own rewards."""
OWN_NAME = "own"
"""What these are called where a name is asked for."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SCORER = ("rm_type", "custom_rm_path", "group_rm", "reward_key", "eval_reward_key")
"""Settings that belong to what scores: naming another scorer leaves none of the run's behind."""


def stage_of(name: str | None) -> str:
    """The stage that scores under a name; the run's own without one. UsageError for what is no name."""
    if name is None:
        return OWN
    if not NAME.fullmatch(name) or name == OWN_NAME:
        raise UsageError(
            f"{name!r} cannot be the name of a reward",
            hint=f"letters, digits, `.`, `_` and `-`, a letter or a digit first, but not `{OWN_NAME}`: --as strict",
        )
    return f"{OWN}-{name}"


def name_of(stage: str) -> str | None:
    """The inverse of `stage_of`; None for any other stage."""
    program, _, name = stage.partition("-")
    return name if program == OWN and name else None


def names_of(run: RunDir) -> list[str]:
    """All names that the run has rewards under, besides its own."""
    return sorted(path.stem for path in run.reward_settings_path("any").parent.glob("*.json"))


def config_of(run: RunDir, config: Config, stage: str) -> Config:
    """What a reward stage scores with: an iteration's config, with the settings of the name over it."""
    name = name_of(stage)
    return config if name is None else with_settings(config, read_settings(run, name))


def with_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with these settings of [reward]."""
    defaults = {name: Reward.model_fields[name].default for name in SCORER} if _names_scorer(values) else {}
    section = Reward.model_validate({**config.reward.model_dump(), **defaults, **values})
    return config.model_copy(update={"reward": section})


def read_settings(run: RunDir, name: str) -> dict[str, Any]:
    """What scores under the name. MissingInputError, with the names that there are, if nothing does."""
    path = run.reward_settings_path(name)
    try:
        return _record(path)
    except FileNotFoundError as error:
        known = names_of(run)
        others = f"; there are {', '.join(known)}" if known else ""
        raise MissingInputError(
            f"{run.root} has no reward {name!r} yet{others}",
            hint=f"say what scores: slime-stages reward --run {run.root} --as {name} --rm-type TYPE",
        ) from error


def freeze_settings(run: RunDir, name: str, values: Mapping[str, Any], *, force: bool) -> None:
    """Have the name score with these settings, over those that it has unless another scorer is among them.

    UsageError if rewards could then be others than before; with `force` they may, and what was scored is stale.
    MissingInputError for a new name without settings.
    """
    path = run.reward_settings_path(name)
    if values and create_file(path, _sealed_bytes(values)):
        return
    known = read_settings(run, name)
    wanted = dict(values) if _names_scorer(values) else {**known, **values}
    if wanted == known:
        return
    if not force and Reward(**wanted).as_json() != Reward(**known).as_json():
        raise UsageError(
            f"reward {name!r} scores with {settings_text(known)}, not with {settings_text(values)}",
            hint="choose another name, or add --force: all that has this one is then scored again",
        )
    replace_file(path, _sealed_bytes(wanted))


def settings_text(values: Mapping[str, Any]) -> str:
    """`rm_type = math, reward_timeout = 5.0`."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def chosen_stage(run: RunDir, iteration: int) -> str:
    """The reward stage whose output the iteration's training reads."""
    path = run.reward_choice_path(iteration)
    try:
        name = _record(path).get("name")
    except FileNotFoundError:
        return OWN
    try:
        return stage_of(name)
    except UsageError as error:
        raise DataError(f"{path} names no reward: {error.message}", hint=f"rm {path}") from error


def choose_reward(run: RunDir, iteration: int, name: str) -> None:
    """Have the iteration's training read this reward, `own` for the run's. What was trained on another one is stale."""
    path = run.reward_choice_path(iteration)
    if name == OWN_NAME:
        path.unlink(missing_ok=True)
        return
    stage_of(name)
    read_settings(run, name)
    replace_file(path, _sealed_bytes({"name": name}))


def _names_scorer(values: Mapping[str, Any]) -> bool:
    return "rm_type" in values or "custom_rm_path" in values


def _sealed_bytes(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(sealed(values), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _record(path: Path) -> dict[str, Any]:
    """FileNotFoundError if it is not there, DataError if it is not whole."""
    try:
        return unsealed(orjson.loads(path.read_bytes()), path)
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is not whole: {error}", hint=f"rm {path}   and name the reward again") from error
