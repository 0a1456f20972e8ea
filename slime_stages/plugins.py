"""Functions by import path, loaded and checked before anything is queued."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from slime_stages.errors import UsageError


@cache
def load_function(path: str, *, like: str | None = None) -> Callable[..., Any]:
    """The function at `package.module.name` or `package.module:name`.

    `like` is the signature it is called with, such as `reward(args, sample)`; UsageError if the path cannot be
    imported, names nothing callable, or cannot take those arguments. The current folder is importable,
    and slime's names are, see `compat`.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise UsageError(f"`{path}` is no import path", hint="write it as package.module.function")
    if "" not in sys.path and "." not in sys.path:
        sys.path.append("")
    importlib.import_module("slime_stages.compat.finder").install()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a plug-in does when it is imported, it is the user's to mend
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"`{path}` cannot be imported: {reason}", hint=f'python -c "import {module_name}"') from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"`{module_name}` has no function `{name}`", hint=f"it has {', '.join(functions[:8])}")
    if like is not None:
        _check_signature(function, path, like)
    return function  # type: ignore[no-any-return]


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of that name, or takes any keyword."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def load_class(path: str, *, like: str, methods: Sequence[str]) -> Callable[..., Any]:
    """The same for a class: `like` is how it is called, `methods` how its instances are, as in `add(self, item)`."""
    cls = load_function(path, like=like)
    for method in methods:
        name = method.partition("(")[0]
        function = getattr(cls, name, None)
        if not isinstance(cls, type) or not callable(function):
            raise UsageError(f"`{path}` has no method `{name}`", hint=f"it is called as {method}")
        _check_signature(function, f"{path}.{name}", method)
    return cls


def _check_signature(function: Callable[..., Any], path: str, like: str) -> None:
    positional, keywords, wanted = _parameters(like)
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some builtins have none
    keywords += [name for name in wanted if accepts(function, name)]
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        have = f"{getattr(function, '__name__', path)}{signature}"
        raise UsageError(f"`{path}` is `{have}`: {error}", hint=f"it is called as {like}") from error


def _parameters(like: str) -> tuple[list[str], list[str], list[str]]:
    """The arguments that `name(a, b, c=False, [d])` gives by position, by name, and by name to those that have it; `*`
    ends the first."""
    positional: list[str] = []
    keywords: list[str] = []
    wanted: list[str] = []
    only_by_name = False
    for part in like[like.index("(") + 1 : like.rindex(")")].split(","):
        name, equals, _ = part.strip().partition("=")
        if name == "*":
            only_by_name = True
        elif name.startswith("["):
            wanted.append(name.strip("[]"))
        elif name:
            (keywords if equals or only_by_name else positional).append(name)
    return positional, keywords, wanted
