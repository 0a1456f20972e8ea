"""Custom reward of the quick start: `--custom-rm-path examples.quickstart.reward.reward`."""

from __future__ import annotations

import re
from typing import Any

INTEGER = re.compile(r"(?<!\d)-?\d+")
"""The minus of `7-3` is an operator, that of `= -4` a sign."""


async def reward(args: Any, sample: Any, **kwargs: Any) -> float:
    """1 when the last integer in the response is the label, else 0."""
    integers = INTEGER.findall(sample.response.replace("−", "-"))
    return float(integers[-1:] == [str(sample.label)])
