"""Collecting raw values with their sources, and turning them into typed sections or into problems."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from slime_stages.config.fields import PASSTHROUGH_PREFIXES, ConfigField, fields, sections, suggestion
from slime_stages.config.flags import Flags, is_flag, scalar, split_flags
from slime_stages.config.model import Config
from slime_stages.config.problems import Problem, setting_problem
from slime_stages.config.toml import TomlFile, with_underscores


@dataclass(slots=True)
class Settings:
    """Values by setting name, later ones over earlier ones, and what was wrong on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    unreadable: set[str] = field(default_factory=set)
    """Settings whose words were refused, and which are therefore not missing."""

    def put(self, name: str, value: Any, source: str) -> None:
        setting = fields()[name]
        if setting.kind == "passthrough" and isinstance(value, Mapping):
            options = with_underscores(value)
            self.values[name] = {**self.values.get(name, {}), **options}
            self.sources |= {f"{name}.{option}": source for option in options}
        else:
            self.values[name] = [value] if setting.kind == "list" and isinstance(value, str | int) else value
        self.sources[name] = source


def add_toml(settings: Settings, file: TomlFile) -> None:
    for section, table in file.tables.items():
        if section not in sections():
            settings.problems.append(_unknown_section(section, table, file))
        elif not isinstance(table, dict):
            hint = f"write `[{section}]` on a line of its own"
            settings.problems.append(setting_problem(section, table, file.source(section), "is a section", hint))
        else:
            for key, value in table.items():
                _add_key(settings, file, section, key, value)


def _add_key(settings: Settings, file: TomlFile, section: str, key: str, value: Any) -> None:
    setting = fields().get(key)
    source = file.source(f"{section}.{key}")
    if setting is None or setting.section != section:
        settings.problems.append(_unknown_key(section, key, source))
    elif setting.kind == "passthrough" and isinstance(value, dict):
        for option, inner in with_underscores(value).items():
            settings.put(key, {option: inner}, file.source(f"{section}.{key}.{option}"))
    else:
        settings.put(key, value, source)


def add_flags(settings: Settings, arguments: Sequence[str]) -> None:
    flags = split_flags(arguments)
    previous = ""
    for word in flags.rest:
        if is_flag(word) or not is_flag(previous):  # what follows an unknown flag is likely its value
            settings.problems.append(_unknown_flag(word))
        previous = word
    add_split_flags(settings, flags)


def add_split_flags(settings: Settings, flags: Flags) -> None:
    settings.problems += flags.problems
    for name, words in flags.words.items():
        _put_words(settings, fields()[name], words, flags.spelled[name])
    for table, options in flags.passthrough.items():
        for option, words in options.items():
            settings.put(table, {option: _passthrough_value(words)}, flags.spelled[f"{table}.{option}"])


def add_mapping(settings: Settings, values: Mapping[str, Any]) -> None:
    """Typed values by setting name, as code gives them."""
    for name, value in values.items():
        if name in fields():
            settings.put(name, value, fields()[name].flag)
        else:
            settings.problems.append(_unknown_flag("--" + name.replace("_", "-")))


def validated(settings: Settings) -> Config | None:
    """None after adding problems."""
    nested: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for name, value in settings.values.items():
        nested[fields()[name].section][name] = value
    try:
        # As JSON: a list is then a tuple, while a text is still no number.
        return Config.model_validate_json(json.dumps(nested, default=str))
    except ValidationError as error:
        by_name: dict[str, list[ErrorDetails]] = {}
        for detail in error.errors():
            by_name.setdefault(str(detail["loc"][1]), []).append(detail)
        settings.problems += [
            _invalid(settings, fields()[name], details)
            for name, details in by_name.items()
            if name not in settings.unreadable
        ]
        return None


def _put_words(settings: Settings, setting: ConfigField, words: list[str], flag: str) -> None:
    if setting.kind == "table":
        _put_json(settings, setting, words[0], flag)
        return
    raw = words if setting.kind == "list" else words[0]
    adapter: TypeAdapter[Any] = TypeAdapter(setting.annotation)
    try:
        settings.put(setting.name, adapter.dump_python(adapter.validate_python(raw), mode="json"), flag)
    except ValidationError as error:
        settings.problems.append(setting_problem(setting.name, raw, flag, *_complaint(setting, error.errors(), raw)))
        settings.unreadable.add(setting.name)


def _put_json(settings: Settings, setting: ConfigField, text: str, flag: str) -> None:
    try:
        settings.put(setting.name, json.loads(text), flag)
    except json.JSONDecodeError as error:
        says, hint = f"should be a JSON object: {error}", f"{flag} '{{\"key\": 1}}'"
        settings.problems.append(setting_problem(setting.name, text, flag, says, hint))


def _passthrough_value(words: list[str]) -> Any:
    if not words:
        return True
    return scalar(words[0]) if len(words) == 1 else [scalar(word) for word in words]


def _invalid(settings: Settings, setting: ConfigField, details: list[ErrorDetails]) -> Problem:
    if details[0]["type"] == "missing":
        ways = f"`{setting.name} = ...` below [{setting.section}], or {setting.flag} {setting.type_label.upper()}"
        return Problem(message=f"{setting.name} is missing", hint=ways)
    value = settings.values[setting.name]
    says, hint = _complaint(setting, details, value)
    return setting_problem(setting.name, value, settings.sources[setting.name], says, hint)


def _complaint(setting: ConfigField, details: Sequence[ErrorDetails], value: Any) -> tuple[str, str | None]:
    """pydantic's words, for a person who does not know Python."""
    if setting.kind == "switch":
        return "should be true or false", None
    if details[0]["type"] in ("tuple_type", "dict_type", "model_type"):
        return ("should be a list" if setting.kind == "list" else "should be a table"), None
    if setting.name == "eval_datasets" and setting.kind == "table":
        places = {".".join(map(str, detail["loc"][2:])): detail["msg"] for detail in details}
        return "; ".join(f"has {place}: {says[0].lower()}{says[1:]}" for place, says in places.items()), None
    messages = dict.fromkeys(_plain(detail["msg"]) for detail in details)
    choices = [str(choice) for choice in _choices(setting.annotation)]
    close = get_close_matches(str(value), choices, n=1)
    return f"should be {' or '.join(messages)}", f"did you mean `{close[0]}`?" if close else None


def _plain(message: str) -> str:
    return message.removeprefix("Input ").removeprefix("should be ").partition(", unable")[0]


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _unknown_section(section: str, table: Any, file: TomlFile) -> Problem:
    source = file.source(section)
    if section in fields():
        message = f"{section} ({source}) stands outside its section"
        return Problem(message=message, hint=f"move it below [{fields()[section].section}]")
    what = "section" if isinstance(table, dict) else "setting"
    names = list(sections()) if what == "section" else list(fields())
    hint = suggestion(section, names) or f"the sections are {', '.join(sections())}"
    return Problem(message=f"there is no {what} {section} ({source})", hint=hint)


def _unknown_key(section: str, key: str, source: str) -> Problem:
    message = f"there is no setting {key} in [{section}] ({source})"
    if key in fields():
        return Problem(message=message, hint=f"it belongs to [{fields()[key].section}]")
    setting = fields().get(next(iter(get_close_matches(key, list(fields()), n=1)), ""))
    if setting is None:
        return Problem(message=message, hint="slime-stages config --help")
    where = "" if setting.section == section else f" in [{setting.section}]"
    return Problem(message=message, hint=f"did you mean `{setting.name}`{where}?")


def _unknown_flag(word: str) -> Problem:
    if not word.startswith("-"):
        return Problem(message=f"no flag takes the word {word}", hint="texts with spaces need quotes")
    known = [one.flag for one in fields().values() if one.kind != "passthrough"]
    known += [one.off_flag for one in fields().values() if one.off_flag is not None]
    flag = word.partition("=")[0]
    prefixes = " and ".join(f"{prefix}*" for prefix in PASSTHROUGH_PREFIXES)
    hint = suggestion(flag, known) or f"`slime-stages config --help` lists them; {prefixes} are passed on"
    return Problem(message=f"there is no flag {flag}", hint=hint)
