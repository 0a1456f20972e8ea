"""Find all that a command started, whatever its parents and groups, by a variable that children inherit."""

from __future__ import annotations

import os

from slime_stages.isolation.limits import kill_all

MARK = "SLIME_STAGES_COMMAND"
KILL_MARKED = f"""
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=
  for file in /proc/[0-9]*/environ; do
    if tr '\\0' '\\n' < "$file" 2> /dev/null | grep -qx "{MARK}=$0"; then
      process=${{file#/proc/}}
      kill -9 "${{process%/environ}}" 2> /dev/null && found=1
    fi
  done
  [ "$found" ] || exit 0
done
"""
"""The same as `kill_marked`, as a script for another machine: `sh -c KILL_MARKED VALUE`."""


def kill_marked(value: str) -> None:
    """Kill the processes of this user with `MARK` set to a value, in whichever process table they are."""
    kill_all(lambda: _find(f"{MARK}={value}".encode()))


def _find(entry: bytes) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and entry in _environment(name)]


def _environment(pid: str) -> list[bytes]:
    """Empty for a process that is gone, or somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
