"""Publish versions of the weights: a folder appears whole, under its number, with a record, and never changes.

Needs no torch. Version 0 is made of links into the model folder that the run began with.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.commit import discard_folder, fsync_path
from slime_stages.run.digest import digest_file
from slime_stages.weights.folders import (
    fsync_folder,
    kept_numbers,
    new_temporary_folder,
    numbered_folders,
    remove_dead_folders,
    remove_folder,
)
from slime_stages.weights.hf_folder import check_hf_folder, other_files, visible_files
from slime_stages.weights.record import (
    FileRecord,
    WeightsRecord,
    make_record,
    read_weights_record,
    write_weights_record,
)

__all__ = [
    "check_hf_folder",
    "check_weights",
    "finish_folder",
    "prune_weights",
    "publish_link",
    "published_versions",
    "unpublished_folder",
    "verify_weights",
]

_VERSION_FOLDER = r"(\d{6,})"


@contextmanager
def unpublished_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, to fill, finish and rename; gone at the end otherwise."""
    remove_dead_folders(target.parent)
    folder = new_temporary_folder(target)
    try:
        yield folder
    finally:
        discard_folder(folder)


def finish_folder(folder: Path, version: int, *, digests: Mapping[str, str] | None = None) -> WeightsRecord:
    """Record what a filled `unpublished_folder` holds, and make it durable: only its name is missing.

    `digests` spares reading files again that were hashed when written.
    """
    known = dict(digests or {})
    files = {file.name: _file_record(file, known.get(file.name)) for file in visible_files(folder)}
    return _finish(folder, make_record(version, files))


def publish_link(source_hf_folder: Path, target: Path) -> WeightsRecord:
    """Make a version out of links to the files of a model folder, which must stay where it is."""
    source = source_hf_folder.absolute()
    weights = check_hf_folder(source)
    with unpublished_folder(target) as folder:
        files = {}
        for file in [*weights, *other_files(source)]:
            (folder / file.name).symlink_to(file)
            files[file.name] = _file_record(file)
        record = _finish(folder, make_record(int(target.name), files, source=source))
        return _renamed(folder, target, record)


def check_weights(folder: Path) -> WeightsRecord:
    """Refuse a version that was not published whole or has lost a file since. Compares sizes only, so it is quick."""
    record = read_weights_record(folder)
    hint = f"restore {record.source}" if record.source else "slime-stages sync --force"
    for name, expected in record.files.items():
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError as error:
            raise MissingInputError(f"weights {folder} have lost {name}", hint=hint) from error
        if found != expected.bytes:
            raise DataError(f"{folder / name} has {found} bytes, {expected.bytes} were published", hint=hint)
    return record


def verify_weights(folder: Path) -> WeightsRecord:
    """`check_weights`, and every file's content against its digest."""
    record = check_weights(folder)
    wrong = [name for name, expected in record.files.items() if digest_file(folder / name) != expected.digest]
    if wrong:
        raise DataError(f"weights {folder} were altered: {', '.join(wrong)}", hint="slime-stages sync --force")
    return record


def published_versions(folder: Path) -> list[int]:
    """The versions below `folder`, in order."""
    return list(numbered_folders(folder, _VERSION_FOLDER))


def prune_weights(folder: Path, keep_last: int, keep_every: int | None, needed: set[int]) -> list[Path]:
    """Delete the versions that retention does not keep, and what dead attempts left; returns the versions."""
    found = numbered_folders(folder, _VERSION_FOLDER)
    kept = kept_numbers(found, keep_last=keep_last, keep_every=keep_every, needed=needed)
    removed = [path for number, path in found.items() if number not in kept]
    for path in removed:
        remove_folder(path)
    remove_dead_folders(folder)
    return removed


def _file_record(file: Path, digest: str | None = None) -> FileRecord:
    return FileRecord(bytes=file.stat().st_size, digest=digest or digest_file(file))


def _finish(folder: Path, record: WeightsRecord) -> WeightsRecord:
    write_weights_record(folder, record)
    fsync_folder(folder)
    return record


def _renamed(folder: Path, target: Path, record: WeightsRecord) -> WeightsRecord:
    """The version's record. One that is there already stays: the same is fine, another is refused."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return _existing(target, record)
    fsync_path(target.parent)
    return record


def _existing(target: Path, record: WeightsRecord) -> WeightsRecord:
    existing = read_weights_record(target)
    if existing.digest != record.digest:
        raise DataError(
            f"{target} is published already, with digest {existing.digest}, not {record.digest}",
            hint="begin another run for another model: --run RUN",
        )
    return existing
