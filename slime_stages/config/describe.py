"""A config as a TOML file, for reading and for feeding back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from slime_stages.config.fields import fields
from slime_stages.config.model import Config

SOURCE_COLUMN = 48


def describe(config: Config, sources: Mapping[str, str] | None = None) -> str:
    """With sources, each value's stands behind it, and derived values are comments: they follow again when read."""
    lines: list[str] = []
    for section_name in type(config).model_fields:
        lines += ["", f"[{section_name}]"]
        tables: list[str] = []
        for name, value in config.section(section_name):
            if fields()[name].kind == "passthrough":
                tables += _passthrough(f"{section_name}.{name}", name, value, sources)
            else:
                lines.append(_line(name, value, name, sources))
        lines += tables
    return "\n".join(lines[1:]) + "\n"


def frozen_sources(config: Config, path: str) -> dict[str, str]:
    """Sources for a config that was read from a run: the file, except where the value is the default."""
    sources = {}
    for name, value in config.flat().items():
        setting = fields()[name]
        sources[name] = "default" if not setting.required and value == setting.default else path
        if setting.kind == "passthrough":
            sources |= {f"{name}.{option}": path for option in value}
    return sources


def toml_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def _passthrough(table: str, name: str, options: Mapping[str, Any], sources: Mapping[str, str] | None) -> Iterator[str]:
    if options:
        yield from ("", f"[{table}]")
        for option, value in options.items():
            yield _line(_key(option), value, f"{name}.{option}", sources)


def _line(key: str, value: Any, name: str, sources: Mapping[str, str] | None) -> str:
    source = "" if sources is None else sources[name]
    absent = value is None or source.startswith("derived")
    line = f"{'# ' if absent else ''}{key} = {toml_value(value)}"
    return f"{line:<{SOURCE_COLUMN}}  # {source}" if source else line


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
