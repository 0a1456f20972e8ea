"""Programs of ours that are quick to start: of Python and of this package, only what they use is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PROGRAM = """
import importlib, json, sys
given = json.load(sys.stdin)
sys.path[:] = given.pop("path")
importlib.import_module(given.pop("module")).main(given)
"""
COMMAND = (sys.executable, "-I", "-S", "-B", "-c", _PROGRAM)
"""It takes a `request` on its stdin."""
_ROOT = str(Path(__file__).parents[2])
"""Where this package is: it may have been found by other means than `sys.path`."""

_LEAVE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from slime_stages.isolation.syscalls import leave_keyring
leave_keyring()
os.execv(sys.argv[2], sys.argv[2:])
"""
WITHOUT_KEYS = (sys.executable, "-I", "-S", "-B", "-c", _LEAVE, _ROOT)
"""Before a command with its whole path: it then has none of the kernel's keys that a login brings along."""


def request(module: str, **values: object) -> bytes:
    """Has `main(values)` of a module called."""
    return json.dumps({"module": module, "path": [_ROOT, *sys.path], **values}).encode()
