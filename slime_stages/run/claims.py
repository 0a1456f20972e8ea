"""The commit of an attempt: its outputs, files and folders, come to their places together, and one manifest says so.

    .claim-NAME.json created exclusively   says which temporary files and folders are the outputs, and holds the
                                           manifest to be
    each of them renamed to its place      by the winner, or by whoever finds the claim: a loser, the next attempt
    manifest created, claim removed        likewise

Killed anywhere in between, the next attempt ends what the claim says, and the outputs are always the manifest's. Where
that cannot be ended, because an output was deleted while it still had its temporary name, the claim stays, void for
everybody, and the next one is `.claim-NAME.json.1`: a claim that is taken away could be another's by then.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slime_stages.errors import RetryableError
from slime_stages.run.commit import (
    CLAIM_PREFIX,
    create_file,
    discard_folder,
    fsync_path,
    is_listed,
    temporary_folder_name,
)


def commit(outputs: Mapping[Path, Path], manifest: Path, manifest_data: bytes) -> bool:
    """Put `outputs`, finished files and folders by the place of each, in place, and make them true by their manifest.

    What lies in a place without a manifest is a dead attempt's, and is replaced. Returns False, and the attempt's own
    outputs are gone, if another attempt won, having ended its commit if it was killed within.
    """
    for temporary in outputs.values():
        os.utime(temporary, ns=(time.time_ns(), time.time_ns()))
        fsync_path(temporary)
    found = {place: (temporary, _identity(temporary)) for place, temporary in outputs.items()}
    own = _Claim(outputs=found, manifest_data=manifest_data).to_bytes(manifest.parent)
    _end(manifest, own)
    for temporary in outputs.values():
        if temporary.is_dir():
            discard_folder(temporary)
        elif temporary.exists():
            temporary.unlink()
    place, (_, identity) = next(iter(found.items()))
    return _identity(place) == identity


def end_claimed(manifest: Path) -> None:
    """End the commit of an attempt that was killed within it, if there is one."""
    if _claim_path(manifest, 0).exists():
        _end(manifest, None)


def _end(manifest: Path, own: bytes | None) -> None:
    """Make the claims come true in their order, up to the first that can be; the last one is `own`, if given.

    All processes find the same claims void: an output that was put in place stays until the manifest is there.
    """
    void: list[bytes] = []
    while not is_listed(manifest):
        path = _claim_path(manifest, len(void))
        content = own if own is not None and create_file(path, own) else _read(path)
        is_of_now = [_read(_claim_path(manifest, number)) for number in range(len(void))] == void
        if is_listed(manifest) or not is_of_now or (content is None and own is not None):
            void.clear()  # another attempt has ended its commit since the claims were read
        elif content is None:
            return
        elif (claim := _Claim.from_bytes(content, manifest.parent)) is not None and claim.put_in_place():
            create_file(manifest, claim.manifest_data)
        elif content == own:
            raise RetryableError(f"what was to be committed as {manifest} went away before it was")
        else:
            void.append(content)
    for path in manifest.parent.glob(f"{_claim_path(manifest, 0).name}*"):
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """Which outputs are committed, and how."""

    outputs: dict[Path, tuple[Path, str]]
    """By their places: temporary name, and identity, by which the output is recognised under either name."""

    manifest_data: bytes

    def to_bytes(self, folder: Path) -> bytes:
        rows = [
            (os.path.relpath(place, folder), os.path.relpath(temporary, folder), identity)
            for place, (temporary, identity) in self.outputs.items()
        ]
        return json.dumps(rows).encode() + b"\n" + self.manifest_data

    @classmethod
    def from_bytes(cls, content: bytes, folder: Path) -> Self | None:
        """Paths are relative to `folder`, that of the manifest. None if it is no claim."""
        line, _, manifest_data = content.partition(b"\n")
        try:
            rows = json.loads(line)
            outputs = {_join(folder, place): (_join(folder, name), str(identity)) for place, name, identity in rows}
        except (ValueError, TypeError):
            return None
        return cls(outputs=outputs, manifest_data=manifest_data)

    def put_in_place(self) -> bool:
        """Rename every output to its place, which others may be doing too; False if one is gone."""
        for place, (temporary, identity) in self.outputs.items():
            if not _put_in_place(temporary, place, identity):
                return False
        for folder in {place.parent: None for place in self.outputs}:
            fsync_path(folder)
        return True


def _put_in_place(temporary: Path, place: Path, identity: str) -> bool:
    while True:
        try:
            temporary.rename(place)
        except FileNotFoundError:
            return is_listed(place) and _identity(place) == identity
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _empty(place, temporary)
        else:
            return True


def _empty(place: Path, temporary: Path) -> None:
    """Take everything out of the folder in a place, so that another can be renamed to it.

    By its descriptor, not by its name, which may be that of the output by now; and by renames, since on NFS a deleted
    file that somebody reads keeps its folder from being empty. Records go first: without them it counts for nothing.
    """
    with suppress(FileNotFoundError):
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not temporary.exists():
                return  # in its place, then, and maybe in the open folder
            aside = temporary_folder_name(place)
            aside.mkdir()
            for name in sorted(os.listdir(folder), key=lambda name: not name.endswith(".json")):
                with suppress(FileNotFoundError):  # another attempt has taken it out
                    os.rename(name, aside / name, src_dir_fd=folder)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(folder)


def _identity(path: Path) -> str:
    """Of a finished output, whatever its name; empty if there is none. The inode of a deleted one is soon another's."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    return f"{found.st_ino}-{found.st_mtime_ns}"


def _claim_path(manifest: Path, number: int) -> Path:
    return manifest.with_name(f"{CLAIM_PREFIX}{manifest.name}" + (f".{number}" if number else ""))


def _join(folder: Path, path: str) -> Path:
    return Path(os.path.normpath(folder / path))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
