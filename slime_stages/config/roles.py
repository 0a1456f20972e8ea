"""Settings of the optimizer that the policy and a critic do not share: slime's `--megatron-config-path`.

megatron:
  - name: critic
    role: critic
    overrides: {lr: 1.0e-5, lr_warmup_iters: 10}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from slime_stages.config.fields import suggestion
from slime_stages.config.model import Config
from slime_stages.config.problems import Problem
from slime_stages.config.sections.optimizer import Optimizer

ACTOR, CRITIC = "actor", "critic"
ROLES = (ACTOR, CRITIC)
OVERRIDES = ("overrides", "args")
"""slime's two names for the same."""
KNOWN = [name for name in Optimizer.model_fields if not name.startswith("megatron_")]


def read_roles(path: str, values: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """By role, settings and their values, from what a file holds; and all that is wrong with it."""
    roles: dict[str, Any] = {}
    problems: list[Problem] = []
    entries = values.get("megatron")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        hint = "megatron:\n  - role: critic\n    overrides: {lr: 1.0e-5}"
        return {}, [Problem(message=f"{path}: `megatron` is no list of roles", hint=hint)]
    for entry in entries:
        role = entry.get("role")
        if role not in ROLES or role in roles:
            says = "is twice in it" if role in roles else f"is none of {', '.join(ROLES)}"
            problems.append(Problem(message=f"{path}: the role {role!r} {says}", hint="one entry for each role"))
            continue
        given: Any = next((entry[key] for key in OVERRIDES if entry.get(key)), {})
        roles[role] = given
        problems += [Problem(message=f"{path}: {role}: {says}", hint=hint) for says, hint in role_complaints(given)]
    return roles, problems


def role_complaints(given: Any) -> Iterator[tuple[str, str | None]]:
    """What is wrong with the settings of a role, and what to do."""
    if not isinstance(given, dict):
        yield "its overrides are no mapping", "overrides: {lr: 1.0e-5}"
        return
    for name in given:
        if name not in KNOWN:
            close = suggestion(str(name), KNOWN) or f"only settings of [optimizer] can differ: {', '.join(KNOWN)}"
            yield f"{name} is no setting that a role has to itself", close
    try:
        Optimizer.model_validate_json(json.dumps({name: value for name, value in given.items() if name in KNOWN}))
    except ValidationError as error:
        for detail in error.errors():
            yield f"{detail['loc'][0]} = {detail['input']!r}: {detail['msg'].lower()}", None


def optimizer_of(config: Config, role: str) -> Optimizer:
    """The optimizer's settings for a role."""
    own = config.optimizer.megatron_roles.get(role, {})
    return Optimizer.model_validate_json(json.dumps({**config.optimizer.model_dump(mode="json"), **own}))


def with_role(config: Config, role: str) -> Config:
    """The config as a role's trainer reads it."""
    return config.model_copy(update={"optimizer": optimizer_of(config, role)})
