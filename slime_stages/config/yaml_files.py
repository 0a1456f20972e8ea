"""The YAML files that settings name: read once, when a config is resolved, and frozen with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slime_stages.config.eval_dataset import EvalDataset
from slime_stages.config.fields import suggestion
from slime_stages.config.problems import Problem
from slime_stages.errors import MissingInputError, UsageError

DATASET_KEYS = list(EvalDataset.model_fields)
EVAL_KEYS = ["defaults", "datasets"]


def read_yaml(path: str, *, flag: str) -> Any:
    """The document in a file. UsageError, with the line, if it is not YAML."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MissingInputError(f"there is no file {path}", hint=f"{flag} FILE.yaml") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{where} is not YAML: {reason}") from error


def read_mapping(path: str, *, flag: str) -> dict[str, Any]:
    """A file of keys and values, which JSON can hold; an empty file has none."""
    values = read_yaml(path, flag=flag)
    if not isinstance(values, dict | None) or not all(isinstance(key, str) for key in values or {}):
        raise UsageError(f"{path} is no mapping of names to values", hint="write `name: value`, one a line")
    try:
        return dict(json.loads(json.dumps(values or {}, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} holds a value that JSON cannot: {error}", hint="put it into quotes") from error


def read_eval_datasets(path: str) -> tuple[dict[str, EvalDataset], list[Problem]]:
    """The sets of an `eval_config` file by name, each with the file's defaults, and all that is wrong with it."""
    values = read_mapping(path, flag="--eval-config")
    root = values.get("eval", values)
    if not isinstance(root, dict):
        return {}, [Problem(message=f"{path}: `eval` is no mapping", hint="eval:\n  datasets: ...")]
    problems = list(_unknown(path, "", root, EVAL_KEYS))
    defaults = root.get("defaults") or {}
    if not isinstance(defaults, dict):
        return {}, [*problems, Problem(message=f"{path}: `defaults` is no mapping")]
    allowed = [key for key in DATASET_KEYS if key != "path"]
    problems += _unknown(path, "`defaults`: ", defaults, allowed)
    datasets: dict[str, EvalDataset] = {}
    for name, entry in _entries(path, root.get("datasets"), problems):
        unknown = list(_unknown(path, f"data set {name}: ", entry, DATASET_KEYS))
        problems += unknown
        if name in datasets:
            problems.append(Problem(message=f"{path}: there are two data sets {name}", hint="a name for each"))
        elif not unknown:
            datasets |= _dataset(path, name, {**_known(defaults), **_known(entry)}, problems)
    return datasets, problems


def _entries(path: str, datasets: Any, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, entry) from a list or a mapping; a mapping's entry may have another `name`."""
    if not datasets or not isinstance(datasets, list | dict):
        hint = "datasets:\n  - name: NAME\n    path: FILE"
        problems.append(Problem(message=f"{path}: `datasets` is no list or mapping of data sets", hint=hint))
        return
    pairs = datasets.items() if isinstance(datasets, dict) else [(None, entry) for entry in datasets]
    for number, (key, entry) in enumerate(pairs, start=1):
        entry = {} if entry is None else entry
        if not isinstance(entry, dict):
            problems.append(Problem(message=f"{path}: data set {key or number} is no mapping", hint="path: FILE"))
            continue
        name = entry.get("name", key)
        if not isinstance(name, str):
            problems.append(Problem(message=f"{path}: data set {number} has no `name`", hint="name: NAME"))
            continue
        yield name, {key: value for key, value in entry.items() if key != "name"}


def _dataset(path: str, name: str, values: dict[str, Any], problems: list[Problem]) -> dict[str, EvalDataset]:
    try:
        return {name: EvalDataset.model_validate_json(json.dumps(values))}
    except ValidationError as error:
        for detail in error.errors():
            key = ".".join(str(part) for part in detail["loc"])
            is_missing = detail["type"] == "missing"
            refused = f"`{key}` = {json.dumps(detail['input'])}: {detail['msg'].lower()}"
            says = f"has no `{key}`" if is_missing else refused
            hint = f"{key}: FILE" if is_missing else None
            problems.append(Problem(message=f"{path}: data set {name} {says}", hint=hint))
        return {}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Null is no value: it hides neither a default nor a setting."""
    return {key: value for key, value in values.items() if key in DATASET_KEYS and value is not None}


def _unknown(path: str, where: str, values: Mapping[str, Any], known: list[str]) -> Iterator[Problem]:
    for key in values:
        if key not in known:
            hint = suggestion(key, known) or f"the keys are {', '.join(known)}"
            yield Problem(message=f"{path}: {where}there is no key `{key}`", hint=hint)
