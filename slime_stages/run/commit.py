"""Publishing files so that a reader sees all of one or nothing, and so that of two racing attempts one wins.

Written under a temporary name, fsynced, renamed, the folder fsynced. Outputs become true by their manifest, created by
a hard link, which one attempt only can make. Outputs (a data file, a folder such as a checkpoint) and manifest are
several, so one file more, the claim, decides first whose they are; see `claims.py`. Before it no attempt touches a
place that others know; after it everybody puts the same outputs there. No locks: they do nothing on some parallel file
systems.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slime_stages.errors import MissingInputError, RetryableError

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".tmp-", ".part"
CLAIM_PREFIX = ".claim-"
ABANDONED_SECONDS = 86400.0
"""A temporary file of another host, whose processes we cannot see, counts as dead after so long without a change."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OWNER = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?P<host>.+?)-(?P<process>\d+)-[0-9a-f]{{16}}-")
_CLAIM_NUMBER = re.compile(r"\.\d+$")


def temporary_name(path: Path) -> Path:
    """A sibling of `path` that no other process uses and that neither readers nor `*.parquet` take for data."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns():016x}"
    return path.with_name(f"{TEMPORARY_PREFIX}{owner}-{path.name}{TEMPORARY_SUFFIX}")


def temporary_folder_name(target: Path) -> Path:
    """The same for a folder; see `slime_stages.weights.folders`."""
    owner = f"{os.getpid()}@{socket.gethostname()}@{time.monotonic_ns():x}"
    return target.with_name(f"{TEMPORARY_PREFIX}{owner}-{target.name}")


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """A temporary file to write, fsynced at the end, for the caller to commit; gone if anything fails."""
    with retryable_full_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        try:
            yield temporary
            fsync_path(temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def retryable_full_disk(folder: Path) -> Iterator[None]:
    """Turns the failure of a write because disk or quota are full into a RetryableError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise full_disk_or(error, folder) from error
        raise


def full_disk_or(error: OSError, path: Path) -> Exception:
    """A RetryableError where the disk or the quota is full, otherwise the error itself."""
    if error.errno not in FULL_DISK:
        return error
    folder = path if path.is_dir() else path.parent
    return RetryableError(
        f"no space left in {folder}: {os.strerror(error.errno or 0)}",
        hint=f"df -h {folder}; free some space and type the same command again: what is committed stays",
    )


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whose last version counts, such as a config that was changed on request."""
    with written_file(path) as temporary:
        temporary.write_bytes(data)
    with retryable_full_disk(path.parent):
        temporary.rename(path)
        fsync_path(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Create a file that must not exist yet; False, and nothing written, if it does."""
    with written_file(path) as temporary:
        temporary.write_bytes(data)
    try:
        with retryable_full_disk(path.parent):
            os.link(temporary, path)
    except FileExistsError:
        # NFS says so too if its first answer to our link was lost
        if not has_inode(path, temporary.stat().st_ino):
            return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)
    return True


def discard_folder(folder: Path) -> None:
    """Delete a folder that others may know: it loses its name first, so that nobody finds it half deleted."""
    aside = temporary_folder_name(folder)
    with suppress(FileNotFoundError):
        folder.rename(aside)
        fsync_path(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of dead processes, and claims that were carried out."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*{TEMPORARY_SUFFIX}"):
        owner = _OWNER.match(path.name)
        if owner and not path.is_dir() and _is_abandoned(path, owner["host"], int(owner["process"])):
            path.unlink(missing_ok=True)
    for claim in folder.glob(f"{CLAIM_PREFIX}*"):
        if claim.with_name(_CLAIM_NUMBER.sub("", claim.name.removeprefix(CLAIM_PREFIX))).exists():
            claim.unlink(missing_ok=True)


def wait_for_file(path: Path, *, timeout_seconds: float = 30.0, what: str, hint: str) -> None:
    """Return once `path` is seen. A network file system may show another node's new file late.

    Lists the parent, which refreshes what an NFS client believes, until the deadline; then MissingInputError.
    """
    deadline = time.monotonic() + timeout_seconds
    while not is_listed(path):
        if time.monotonic() >= deadline:
            raise MissingInputError(f"{what} is missing: {path}", hint=hint)
        time.sleep(min(0.5, timeout_seconds / 10))


def is_listed(path: Path) -> bool:
    """Whether the path is there, by a list of its folder."""
    try:
        return path.name in os.listdir(path.parent)
    except FileNotFoundError:
        return False


def has_inode(path: Path, inode: int) -> bool:
    """Whether it is this file or folder that lies there."""
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


def _is_abandoned(path: Path, host: str, process: int) -> bool:
    if host == socket.gethostname():
        return not _is_alive(process)
    try:
        return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
