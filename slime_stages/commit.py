"""Publishing files so that a reader sees all of one or nothing, and so that of two racing attempts one wins.

Written under a temporary name, fsynced, renamed, the folder fsynced. Data becomes true by its manifest, which is
created exclusively by a hard link. No locks: they do nothing on some parallel file systems.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slime_stages.errors import MissingInputError, RetryableError

TEMPORARY_PREFIX = ".tmp-"


def temporary_name(path: Path) -> Path:
    """A sibling of `path` that no other process uses and that no reader takes for data."""
    return path.with_name(f"{TEMPORARY_PREFIX}{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns():x}-{path.name}")


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """A temporary file to write; fsynced at the end and gone if it was not renamed meanwhile or anything failed.

    A full disk becomes a RetryableError that says how much is free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        fsync_path(temporary)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise full_disk_or(error, path) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def full_disk_or(error: OSError, path: Path) -> Exception:
    """A RetryableError where the disk or the quota is full, otherwise the error itself."""
    import errno

    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return RetryableError(
        f"no space left to write {path.name} in {path.parent}",
        hint=f"df -h {path.parent}; free some space and type the same command again: what is committed stays",
    )


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whose last version counts, such as a config that was changed on request."""
    with written_file(path) as temporary:
        temporary.write_bytes(data)
    temporary.rename(path)
    fsync_path(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Create a file that must not exist yet; False, and nothing written, if it does."""
    with written_file(path) as temporary:
        temporary.write_bytes(data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)
    return True


def commit(data: Path, temporary: Path, manifest: Path, manifest_data: bytes) -> bool:
    """Put `temporary` in place as `data` and make it true by its manifest.

    Data that lies there without a manifest is a dead attempt's, and is replaced; if its attempt turns out to be alive
    and wins the manifest, its data is put back. Returns False if another attempt won.
    """
    if manifest.exists():
        temporary.unlink(missing_ok=True)
        return False
    aside = temporary_name(data)
    replaced = _move(data, aside)
    temporary.rename(data)
    fsync_path(data.parent)
    won = create_file(manifest, manifest_data)
    if won:
        aside.unlink(missing_ok=True)
    elif replaced:
        aside.rename(data)
        fsync_path(data.parent)
    return won


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of dead processes of this host."""
    own = f"{TEMPORARY_PREFIX}{socket.gethostname()}-"
    for path in folder.glob(f"{own}*"):
        pid = path.name.removeprefix(own).split("-", 1)[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def wait_for_file(path: Path, *, timeout_seconds: float = 30.0, what: str, hint: str) -> None:
    """Return once `path` is seen. A network file system may show another node's new file late.

    Lists the parent, which refreshes what an NFS client believes, until the deadline; then MissingInputError.
    """
    deadline = time.monotonic() + timeout_seconds
    while not _is_listed(path):
        if time.monotonic() >= deadline:
            raise MissingInputError(f"{what} is missing: {path}", hint=hint)
        time.sleep(min(0.5, timeout_seconds / 10))


def _is_listed(path: Path) -> bool:
    try:
        return path.name in os.listdir(path.parent)
    except FileNotFoundError:
        return False


def _move(path: Path, target: Path) -> bool:
    try:
        path.rename(target)
    except FileNotFoundError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
