"""Which GPUs this process may use, asked of the environment and the device files, not of a driver."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slime_stages.serving.launch import has_accelerator

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""HIP reads it, too."""

NVIDIA_DEVICE = re.compile(r"nvidia(\d+)")


def visible_devices() -> tuple[str, ...]:
    """The GPUs by the names that `CUDA_VISIBLE_DEVICES` takes; none on a machine without."""
    told = os.environ.get(VISIBLE)
    if not has_accelerator():
        return ()
    if told is not None:
        names = [name.strip() for name in told.split(",")]
        return tuple(name for name in names if name not in ("", "-1", "NoDevFiles"))
    try:
        found = [NVIDIA_DEVICE.fullmatch(path.name) for path in Path("/dev").iterdir()]
    except OSError:
        return ()
    return tuple(sorted((match[1] for match in found if match), key=int))
