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
    imported, names nothing callable, or cannot take those arguments. The current folder is importable.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise UsageError(f"`{path}` is no import path", hint="write it as package.module.function")
    if "" not in sys.path and "." not in sys.path:
        sys.path.append("")
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


def _check_signature(function: Callable[..., Any], path: str, like: str) -> None:
    arguments: Sequence[str] = [part.strip() for part in like[like.index("(") + 1 : like.rindex(")")].split(",")]
    positional = [name for name in arguments if name and "=" not in name]
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some builtins have none
    try:
        signature.bind(*positional)
    except TypeError as error:
        have = f"{getattr(function, '__name__', path)}{signature}"
        raise UsageError(f"`{path}` is `{have}`: {error}", hint=f"it is called as {like}") from error
