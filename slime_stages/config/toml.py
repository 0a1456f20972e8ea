"""Reading a config file, with the line that each key stands on."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.errors import MissingInputError, UsageError

HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?")
KEY = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlFile:
    """A config file, not yet checked; dashes in names of sections and settings are underscores."""

    name: str
    """As the person gave it."""

    tables: dict[str, Any]

    lines: dict[str, int]
    """Line of each key, by its full name, such as `serving.sglang.mem_fraction_static`."""

    def source(self, key: str) -> str:
        """Where a key stands, such as `config.toml:12`."""
        line = self.lines.get(key)
        return f"{self.name}:{line}" if line else self.name


def read_toml(path: Path) -> TomlFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MissingInputError(f"there is no config file {path}", hint="slime-stages config --help") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)[0].lower() + str(error)[1:]
        raise UsageError(
            f"{path} is not TOML: {message}", hint="texts need quotes, lists brackets, true and false no capitals"
        ) from error
    tables_of_settings = {name: with_underscores(table) for name, table in with_underscores(tables).items()}
    return TomlFile(name=str(path), tables=tables_of_settings, lines=_lines_of_keys(text))


def with_underscores(table: Any) -> Any:
    """A table's own keys as settings spell them; keys further down are the user's."""
    return {key.replace("-", "_"): value for key, value in table.items()} if isinstance(table, dict) else table


def _lines_of_keys(text: str) -> dict[str, int]:
    """Good for the plain layout of sections and keys; a key it does not find is only named without its line."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.fullmatch(line):
            table = header[1].replace("-", "_")
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            name = key[1].replace("-", "_")
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines
