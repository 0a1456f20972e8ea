"""`--sglang-config`: a YAML file that says which models are served, by which groups of engines.

sglang:
  - name: actor
    server_groups:
      - {worker_type: prefill, num_gpus: 4, num_gpus_per_engine: 2}
      - {worker_type: decode, num_gpus: 4, overrides: {mem_fraction_static: 0.8}}
  - name: judge
    model_path: /models/judge
    server_groups: [{worker_type: regular, num_gpus: 2}]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from slime_stages.config.problems import Problem, raise_for
from slime_stages.errors import UsageError

WorkerType = Literal["regular", "prefill", "decode", "placeholder", "encoder"]
Place = tuple[str | int, ...]


class ServerGroup(BaseModel):
    """Engines that are alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    worker_type: WorkerType
    """`placeholder` keeps GPUs free for something else; `prefill` and `decode` share the work on a request."""

    num_gpus: PositiveInt
    """GPUs of the group."""

    num_gpus_per_engine: PositiveInt | None = None
    """None: as its model says."""

    overrides: dict[str, Any] = {}
    """Options of SGLang for these engines, over all others."""


class ServedModel(BaseModel):
    """One model, behind one address."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1)
    """By which generate functions find it."""

    model_path: str | None = None
    """Hugging Face folder; None: the model that is trained."""

    num_gpus_per_engine: PositiveInt | None = None
    """None: `rollout_num_gpus_per_engine`."""

    update_weights: bool | None = None
    """Serve the run's newest weights; None: where `model_path` is the model that is trained."""

    server_groups: tuple[ServerGroup, ...] = Field(
        validation_alias=AliasChoices("server_groups", "engine_groups"), strict=False
    )
    """At least one that generates."""

    def own_path(self) -> str | None:
        """`model_path`, which the groups' overrides may name, too."""
        named = [str(group.overrides["model_path"]) for group in self.server_groups if "model_path" in group.overrides]
        return named[0] if named else self.model_path


def read_sglang_config(path: Path) -> tuple[ServedModel, ...]:
    """The models of a file. UsageError that lists all that is wrong with it, each with its line."""
    try:
        text = path.read_text(encoding="utf-8")
        tree, values = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"sglang_config {path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{path} is no YAML: {words}", hint=f"edit {path}") from error
    if not isinstance(values, dict) or not isinstance(values.get("sglang"), list) or not values["sglang"]:
        raise UsageError(
            f"{path} has no list of models below `sglang:`", hint="begin with `sglang:` and `- name: actor`"
        )
    problems, models = [], []
    for number, entry in enumerate(values["sglang"]):
        try:
            models.append(ServedModel.model_validate(entry))
        except ValidationError as error:
            for detail in error.errors():
                problems.append(_problem(path, tree, ("sglang", number, *detail["loc"]), _says(detail)))
    problems += [_problem(path, tree, place, says) for place, says in _between(models)] if not problems else []
    raise_for(problems)
    return tuple(models)


def _between(models: list[ServedModel]) -> Iterator[tuple[Place, str]]:
    """Rules between entries."""
    names = [model.name for model in models]
    for number, model in enumerate(models):
        if names.index(model.name) < number:
            yield ("sglang", number, "name"), f"is {model.name}, as that of entry {names.index(model.name)} is"
        paths = {str(group.overrides.get("model_path", model.model_path)) for group in model.server_groups}
        if len(paths) > 1:
            yield ("sglang", number), f"serves {' and '.join(sorted(paths))}: groups of one model share model_path"
        kinds = {group.worker_type for group in model.server_groups}
        if ("prefill" in kinds) != ("decode" in kinds):
            missing = "decode" if "prefill" in kinds else "prefill"
            yield ("sglang", number, "server_groups"), f"has no {missing} group: prefill and decode work in pairs"
        if "prefill" in kinds and "regular" in kinds:
            yield ("sglang", number, "server_groups"), "mixes regular engines with prefill and decode"
        if not kinds & {"regular", "decode"}:
            yield ("sglang", number, "server_groups"), "has no group that generates"


def _says(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return "is not known here"
    if detail["type"] == "missing":
        return "is missing"
    words = str(detail["msg"]).removeprefix("Input ")
    return words[:1].lower() + words[1:]


def _problem(path: Path, tree: yaml.Node, place: Place, says: str) -> Problem:
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return Problem(message=f"{path}:{_line(tree, place)}: {words} {says}", hint=f"edit {path}")


def _line(tree: yaml.Node, place: Place) -> int:
    """The line of an entry, or of the nearest one around it that is there."""
    node, line = tree, tree.start_mark.line
    for part in place:
        found: yaml.Node | None = None
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            names = {"server_groups", "engine_groups"} if part == "server_groups" else {part}
            for key, value in node.value:
                if key.value in names:
                    found, line = value, key.start_mark.line
        if found is None:
            break
        node = found
        if isinstance(part, int):
            line = node.start_mark.line
    return int(line) + 1
