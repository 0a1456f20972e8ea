"""What is installed for the interpreter that runs SGLang, asked of that interpreter without importing SGLang.

The server may live in another environment or in a container, so a small script is piped into its interpreter.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slime_stages.errors import UsageError

PROBE = Path(__file__).with_name("probe.py")
PROBE_TIMEOUT_SECONDS = 120
OWN_PYTHON = shlex.quote(sys.executable)
"""The command of this process's interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One command-line option of an installed program."""

    option: str
    """As typed, such as `--mem-fraction-static`."""

    kind: str
    """`value`, `switch` (present or absent) or `either` (`--x` and `--no-x`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The serving packages of one interpreter."""

    python: tuple[str, ...]
    """Words of the command that starts it."""

    versions: Mapping[str, str]
    """Distribution name → version, of those that matter here and are installed."""

    sglang_flags: Mapping[str, Flag]
    """By name with underscores: both the field's name and the option's."""

    router_flags: Mapping[str, Flag]
    """The same for smg, without its `router-` prefix."""


@functools.lru_cache(maxsize=8)
def inspect_installation(python: str) -> Installation:
    """Ask `python`, a command such as `/envs/sglang/bin/python` or `apptainer exec image python3`."""
    words = tuple(shlex.split(python))
    try:
        result = subprocess.run(
            [*words, "-"],
            input=PROBE.read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=True,
        )
        answer = json.loads(result.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        words_of_stderr = (getattr(error, "stderr", None) or "").strip().splitlines()
        reason = words_of_stderr[-1] if words_of_stderr else str(error)
        raise UsageError(
            f"the interpreter of the engines, `{python}`, does not run: {reason}",
            hint="set --serving-python to the Python that has sglang installed",
        ) from error
    return Installation(
        python=words,
        versions=answer["versions"],
        sglang_flags={name: Flag(option=option, kind=kind) for name, (option, kind) in answer["sglang"].items()},
        router_flags={name: Flag(option=option, kind=kind) for name, (option, kind) in answer["smg"].items()},
    )
