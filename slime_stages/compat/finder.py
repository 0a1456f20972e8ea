"""Has `import slime.…` find our stand-ins, after everything that is installed: a real slime comes first.

Modules are empty until a name is asked of them, so that a plug-in loads no more than it uses.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from slime_stages.compat.names import ABSENT, NAMES

ROOT = "slime"


def install() -> None:
    """Once a process; it costs an entry at the end of `sys.meta_path`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


@cache
def module_names() -> frozenset[str]:
    """Every module that has a stand-in, packages included."""
    names = {".".join((ROOT, *name.split(".")[:end])) for name in NAMES for end in range(name.count(".") + 2)}
    return frozenset(names)


class _Finder(MetaPathFinder, Loader):
    """Finds and makes the stand-ins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for what is not slime's, or is a real slime's; ImportError for what has no stand-in."""
        if fullname.partition(".")[0] != ROOT or _is_real(sys.modules.get(ROOT)):
            return None
        if fullname not in module_names():
            raise _unknown(fullname)
        # All are packages: Python then asks here for a name that a module lacks, and the answer can say what there is.
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, f"slime-stages' stand-in for `{spec.name}`.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names come when they are asked for."""


class _StandIn(ModuleType):
    """A module of slime's, with the names that the table has for it."""

    def __getattr__(self, name: str) -> Any:
        table = _names_of(self.__name__)
        if name == "__all__":
            return list(table)
        if name not in table:
            raise AttributeError(f"slime-stages' stand-in for `{self.__name__}` has no `{name}`")
        module, _, attribute = table[name].partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_offered(self.__name__)]


def _is_real(module: ModuleType | None) -> bool:
    """A folder that happens to be called slime, without any code of its own, is none."""
    return module is not None and not isinstance(module, _StandIn) and getattr(module, "__file__", None) is not None


def _names_of(module: str) -> dict[str, str]:
    return NAMES.get(module.removeprefix(f"{ROOT}."), {})


def _offered(module: str) -> list[str]:
    below = {each.removeprefix(f"{module}.") for each in module_names() if each.startswith(f"{module}.")}
    return sorted({*_names_of(module), *(each for each in below if "." not in each)})


def _unknown(fullname: str) -> ImportError:
    """Without a `name`, or Python would take it for a submodule that need not be there."""
    parent, _, name = fullname.rpartition(".")
    offered = ", ".join(_offered(parent)) if parent in module_names() else "nothing"
    reasons = [reason for module, reason in ABSENT.items() if f"{fullname}.".startswith(f"{ROOT}.{module}.")]
    return ModuleNotFoundError(
        f"slime is not installed, and slime-stages has no `{name}` of `{parent}`; it has {offered}. "
        + "".join(f"{reason}. " for reason in reasons)
        + "docs/plug-ins.md lists all; ask for what a plug-in of yours needs in an issue of slime-stages"
    )
