"""The flat table of all settings: name, flag, type and text, read off the section classes."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from slime_stages.config.model import Config
from slime_stages.config.types import PATH, Section

Kind = Literal["switch", "value", "list", "table", "passthrough"]

PASSTHROUGH_PREFIXES = {"--sglang-": "sglang", "--router-": "router", "--megatron-": "megatron"}
"""Flags of programs we start and of libraries we use, and the table they go to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigField:
    """One setting."""

    section: str
    name: str

    kind: Kind
    """A switch is true or false, a list takes several words, a table is one JSON object; passthrough has no flag."""

    annotation: Any
    """Its type, for pydantic."""

    type_label: str
    """Its type, for people: `integer`, `text ...`, `grpo|gspo|cispo`."""

    required: bool
    default: Any
    description: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def off_flag(self) -> str | None:
        """The flag that turns a switch off; `--disable-x` has none, since it turns something off already."""
        return f"--no-{self.flag[2:]}" if self.kind == "switch" and not self.name.startswith("disable_") else None


@cache
def sections() -> dict[str, type[Section]]:
    found = {}
    for name, info in Config.model_fields.items():
        assert isinstance(info.annotation, type), name
        assert issubclass(info.annotation, Section), name
        found[name] = info.annotation
    return found


@cache
def fields() -> MappingProxyType[str, ConfigField]:
    """Every setting by name; a name belongs to one section only."""
    table: dict[str, ConfigField] = {}
    for section, cls in sections().items():
        for name, info in cls.model_fields.items():
            assert name not in table, f"{name} is in [{section}] and in [{table[name].section}]"
            table[name] = _field(section, name, info)
    return MappingProxyType(table)


def suggestion(word: str, known: list[str], *, how: str = "did you mean `{}`?") -> str | None:
    """A hint that names the closest known word."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return how.format(close[0]) if close else None


def _field(section: str, name: str, info: FieldInfo) -> ConfigField:
    assert info.description, f"{section}.{name} has no text under it"
    # Constraints stand beside the annotation in pydantic's record; together they say what the field accepts.
    annotation = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    kind = "passthrough" if name in PASSTHROUGH_PREFIXES.values() else _kind(annotation)
    return ConfigField(
        section=section,
        name=name,
        kind=kind,
        annotation=annotation,
        type_label=_label(annotation),
        required=info.is_required(),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        description=" ".join(info.description.split()),
    )


def _alternatives(annotation: Any) -> list[Any]:
    """The types of a union without None, each without its constraints."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [one for part in get_args(annotation) if part is not NoneType for one in _alternatives(part)]
    return [annotation]


def _kind(annotation: Any) -> Kind:
    [first, *_] = _alternatives(annotation)
    if first is bool:
        return "switch"
    origin = get_origin(first)
    return "list" if origin is tuple else "table" if origin is dict else "value"


def _label(annotation: Any) -> str:
    if get_origin(annotation) is Annotated and PATH in get_args(annotation):
        return "path"
    return "|".join(_label_of_one(one) for one in _alternatives(annotation))


def _label_of_one(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is tuple:
        return f"{_label(get_args(annotation)[0])} ..."
    if origin is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if origin is dict:
        return "json"
    return {int: "integer", float: "number", str: "text", bool: "switch"}[annotation]
