"""Numbered folders that appear whole or not at all: checkpoints and published weights.

A folder is written under a temporary name beside its target, made durable, then renamed. Whatever carries a temporary
name belongs to an attempt that is running or dead; no reader looks at it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slime_stages.run.commit import TEMPORARY_PREFIX, discard_folder, fsync_path, temporary_folder_name

IDLE_SECONDS = 3600.0
"""A temporary folder of another host, whose processes we cannot see, counts as dead after so long without a change."""

_OWNER = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?P<process>\d+)@(?P<host>[^@]+)@[0-9a-f]+-(?P<name>.+)")


def new_temporary_folder(target: Path) -> Path:
    """An empty folder beside `target`, to be filled and renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = temporary_folder_name(target)
    folder.mkdir()
    return folder


def fsync_folder(folder: Path, *, already_durable: Iterable[str] = ()) -> None:
    """Make every file of a flat folder, and the folder itself, survive a crash of the machine."""
    skipped = set(already_durable)
    for path in sorted(folder.iterdir()):
        if path.name not in skipped and not path.is_symlink():
            fsync_path(path)
    fsync_path(folder)


def replace_folder(temporary: Path, target: Path) -> None:
    """Put a finished folder in place of whatever lies there. A kill in between leaves no target, never half of one."""
    replaced = []
    while True:
        replaced.append(temporary_folder_name(target))
        with suppress(FileNotFoundError):
            target.rename(replaced[-1])
        try:
            temporary.rename(target)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another attempt was faster: once more
                raise
    fsync_path(target.parent)
    for aside in replaced:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder that readers may know."""
    discard_folder(folder)


def remove_dead_folders(parent: Path) -> list[Path]:
    """Delete the temporary folders of dead attempts below `parent`; returns them."""
    dead = [path for path in _entries(parent) if path.is_dir() and _is_dead(path)]
    for path in dead:
        discard_folder(path)
    return dead


def has_live_writer(target: Path) -> bool:
    """Whether a process that may be alive is writing `target`, or a part of it."""
    owned = [path for path in _entries(target.parent) if _owned_name(path).split(".")[0] == target.name]
    return any(not _is_dead(path) for path in owned)


def numbered_folders(parent: Path, pattern: str) -> dict[int, Path]:
    """The folders below `parent` whose names match `pattern`, whose first group is the number, in order."""
    found = {}
    for path in _entries(parent):
        match = re.fullmatch(pattern, path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def kept_numbers(numbers: Iterable[int], *, keep_last: int, keep_every: int | None, needed: set[int]) -> set[int]:
    """Which of the numbers retention keeps: the last ones, every n-th one, and what somebody needs."""
    assert keep_last >= 1, keep_last
    ordered = sorted(numbers)
    kept = set(ordered[-keep_last:]) | (needed & set(ordered))
    if keep_every:
        kept |= {number for number in ordered if number % keep_every == 0}
    return kept


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _owned_name(path: Path) -> str:
    """What a temporary folder is to become; empty if it is none."""
    match = _OWNER.fullmatch(path.name)
    return match["name"] if match else ""


def _is_dead(folder: Path) -> bool:
    match = _OWNER.fullmatch(folder.name)
    if match is None:
        return False
    if match["host"] == socket.gethostname():
        return not _process_exists(int(match["process"]))
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return False
    return time.time() - newest > IDLE_SECONDS


def _process_exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
