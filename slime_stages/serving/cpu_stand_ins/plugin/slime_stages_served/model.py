"""The model class of the architecture in SLIME_STAGES_ARCHITECTURE, from SGLang's own module."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path
from typing import Any


def find_model_class(architecture: str) -> Any:
    """The class named `architecture`; a module is imported only if its text defines that name."""
    package = importlib.import_module("sglang.srt.models")
    for found in pkgutil.iter_modules(package.__path__):
        source = Path(package.__path__[0]) / f"{found.name}.py"
        if source.is_file() and f"class {architecture}(" in source.read_text(encoding="utf-8"):
            return getattr(importlib.import_module(f"sglang.srt.models.{found.name}"), architecture)
    raise ImportError(f"no module of sglang.srt.models defines {architecture}")


EntryClass = find_model_class(os.environ["SLIME_STAGES_ARCHITECTURE"])
