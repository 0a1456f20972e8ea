"""Splitting a command line into settings, pass-through options and the rest, the way slime's parser reads it.

A list takes every word up to the next flag, and may be repeated. `--flag=value` is for values that begin with `--`.
Words before the flags, or after `--`, belong to the command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from slime_stages.config.fields import PASSTHROUGH_PREFIXES, ConfigField, fields
from slime_stages.config.problems import Problem
from slime_stages.config.types import Scalar

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(slots=True)
class Flags:
    """A command line, taken apart."""

    words: dict[str, list[str]] = field(default_factory=dict)
    """The words after each setting's flag, by the setting's name; of a switch `true` or `false`."""

    passthrough: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """`{"sglang": {"mem_fraction_static": ["0.8"]}}`; no words for a bare flag."""

    spelled: dict[str, str] = field(default_factory=dict)
    """The flag as typed, by setting name or by `sglang.NAME`."""

    rest: list[str] = field(default_factory=list)
    """What is none of ours, in its order."""

    problems: list[Problem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.words or self.passthrough or self.problems)


def split_flags(arguments: Sequence[str]) -> Flags:
    flags = Flags()
    by_flag = {one.flag: one for one in fields().values() if one.kind != "passthrough"}
    off = {one.off_flag: one for one in fields().values() if one.off_flag}
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        flag, equals, attached = word.partition("=")
        if word == "--":
            flags.rest += [word, *queue]
            break
        if flag in by_flag:
            _take_setting(flags, by_flag[flag], flag, attached if equals else None, queue)
        elif word in off:
            _record(flags, off[word].name, word, ["false"])
        elif table := next((name for prefix, name in PASSTHROUGH_PREFIXES.items() if flag.startswith(prefix)), None):
            option = flag.removeprefix(f"--{table}-").replace("-", "_")
            flags.passthrough.setdefault(table, {})[option] = [attached] if equals else _take_words(queue)
            flags.spelled[f"{table}.{option}"] = flag
        else:
            flags.rest.append(word)
    return flags


def scalar(text: str) -> Scalar:
    """A pass-through word as the TOML file would hold it."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9]\d*)", text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) and not re.fullmatch(r"[+-]?\d+", text) else text


def is_flag(word: str) -> bool:
    """`--lr` and `-h` are; `-1`, `-` and `-1e-3` are values."""
    return word.startswith("-") and word != "-" and not NUMBER.fullmatch(word)


def _take_setting(flags: Flags, setting: ConfigField, flag: str, attached: str | None, queue: list[str]) -> None:
    if attached is not None:
        words = [attached]
    elif setting.kind == "switch":
        words = ["true"]
    elif setting.kind == "list":
        words = _take_words(queue)
    else:
        words = [queue.pop(0)] if queue and not is_flag(queue[0]) else []
    if not words:
        hint = f"{flag} {setting.type_label.upper()}, or `{flag}=VALUE` if the value begins with a dash"
        flags.problems.append(Problem(message=f"{flag} needs a value", hint=hint))
        return
    if setting.kind == "list":
        words = flags.words.get(setting.name, []) + words
    _record(flags, setting.name, flag, words)


def _take_words(queue: list[str]) -> list[str]:
    words = []
    while queue and not is_flag(queue[0]):
        words.append(queue.pop(0))
    return words


def _record(flags: Flags, name: str, flag: str, words: list[str]) -> None:
    flags.words[name] = words
    flags.spelled[name] = flag
