"""Take files out of an archive that a stranger packed."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from slime_stages.errors import DataError


def extract_files(content: bytes, target: Path) -> None:
    """Write the files and folders of a tar below a new or empty folder; links and devices are left out.

    With no link ever made there, a name without `..` can only lead into the folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise DataError(f"{target} is not empty", hint="download to a new folder")
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                _extract(archive, member, target)
    except tarfile.TarError as error:
        raise DataError(
            f"what was downloaded for {target} is no archive: {error}", hint="is `tar` within damaged?"
        ) from error


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise DataError(f"an archive for {target} names `{member.name}`", hint="look at what the agent did there")
    path = target / name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None
        with path.open("wb") as file:
            shutil.copyfileobj(source, file)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
