"""What log functions of the user's call: their numbers go where the run's own do."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any


def log(args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
    """Numbers of an iteration, in a log function of the user's; anywhere else they are printed."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    numbers = {name: float(value) for name, value in plain.items() if isinstance(value, Real)}
    tell = getattr(args, "log_metrics", None)
    if tell is None:
        print(json.dumps(numbers), file=sys.stderr)
    else:
        tell(numbers)


def configure_logger(prefix: str = "") -> None:
    """Have loggers write to stderr, unless somebody has seen to it."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {prefix}%(name)s: %(message)s")


def init_tracking(args: Any, **_: Any) -> None:
    """Nothing: there is no connection to open."""


def finish_tracking(args: Any = None) -> None:
    """Nothing: there is no connection to close."""
