"""Publishing files so that a reader sees all of one or nothing, and so that of two racing attempts one wins.

Written under a temporary name, fsynced, renamed, the folder fsynced. Data becomes true by its manifest, created by a
hard link, which one attempt only can make. Data and manifest are two files, so a third one, the claim, decides first:

    .claim-NAME.json created exclusively   says which temporary file is the data, and holds the manifest to be
    temporary file renamed to the data     by the winner, or by whoever finds the claim: a loser, the next attempt
    manifest created, claim removed        likewise

Killed anywhere in between, the next attempt ends what the claim says, and the data is always the manifest's.
No locks: they do nothing on some parallel file systems.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slime_stages.errors import MissingInputError, RetryableError

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".tmp-", ".part"
CLAIM_PREFIX = ".claim-"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def temporary_name(path: Path) -> Path:
    """A sibling of `path` that no other process uses and that neither readers nor `*.parquet` take for data."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns():016x}"
    return path.with_name(f"{TEMPORARY_PREFIX}{owner}-{path.name}{TEMPORARY_SUFFIX}")


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
        if not _has_inode(path, temporary.stat().st_ino):
            return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)
    return True


def commit(data: Path, temporary: Path, manifest: Path, manifest_data: bytes) -> bool:
    """Put `temporary` in place as `data` and make it true by its manifest.

    Data that lies there without a manifest is a dead attempt's, and is replaced. Returns False, and `temporary` is
    gone, if another attempt won, having ended its commit if it was killed within.
    """
    fsync_path(temporary)
    claim = manifest.with_name(f"{CLAIM_PREFIX}{manifest.name}")
    inode = temporary.stat().st_ino
    own = f"{temporary.name} {inode}\n".encode() + manifest_data
    while not _is_listed(manifest):
        content = own if create_file(claim, own) else _read(claim)
        if content is None or _is_listed(manifest):
            continue
        done = _carry_out(content, claim, data, manifest)
        if content is own:
            if not done:
                raise RetryableError(f"{temporary} went away before it was committed")
            return True
    claim.unlink(missing_ok=True)
    temporary.unlink(missing_ok=True)
    return _has_inode(data, inode)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of dead processes of this host, and claims that were carried out."""
    host = re.escape(f"{TEMPORARY_PREFIX}{socket.gethostname()}-")
    for path in folder.glob(f"{TEMPORARY_PREFIX}*{TEMPORARY_SUFFIX}"):
        owner = re.match(rf"{host}(\d+)-[0-9a-f]{{16}}-", path.name)
        if owner and not _is_alive(int(owner[1])) and not path.is_dir():
            path.unlink(missing_ok=True)
    for claim in folder.glob(f"{CLAIM_PREFIX}*"):
        if claim.with_name(claim.name.removeprefix(CLAIM_PREFIX)).exists():
            claim.unlink(missing_ok=True)


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


def _carry_out(content: bytes, claim: Path, data: Path, manifest: Path) -> bool:
    """End the commit that a claim describes; False, and the claim is gone, if its data went away meanwhile.

    Several processes may do this at once. The inode tells whether the data in place is the claim's.
    """
    line, _, manifest_data = content.partition(b"\n")
    name, inode = line.decode().rsplit(" ", 1)
    try:
        data.with_name(name).rename(data)
    except FileNotFoundError:
        if not _has_inode(data, int(inode)):
            if _read(claim) == content:
                claim.unlink(missing_ok=True)
            return False
    fsync_path(data.parent)
    create_file(manifest, manifest_data)
    claim.unlink(missing_ok=True)
    return True


def _has_inode(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
