"""The families that there are: every module here describes one, and needs no mention elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from slime_stages.weights.mapping.family import Family


@cache
def families() -> dict[str, Family]:
    """By `model_type`."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.FAMILY.model_type: module.FAMILY for module in modules}
