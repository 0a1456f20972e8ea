"""A manifest is the commit of a piece of work: written last, created exclusively, it says what was made from what.

What has no manifest does not exist. A manifest also says when its output is stale: when the digests of its inputs, or
of the config sections that its stage reads, are no longer the ones it names.
"""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slime_stages import __version__
from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.claims import commit
from slime_stages.run.commit import create_file
from slime_stages.run.digest import digest_file, sealed, unsealed

MANIFEST_VERSION = 1


class Manifest(BaseModel):
    """What one attempt of a stage made, from what, and how it went."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: str
    """Stage: rollout, reward (or reward-NAME), train or sync."""
    schema_version: int = MANIFEST_VERSION
    run_id: str
    iteration: int
    shard: int | None = None
    split: str = "train"
    """`train`, or the name of an evaluation set."""
    data: str | None = None
    """Name of the data file beside the manifest."""
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    digest: str = ""
    """xxh3-128 of the data file, in hex: whether it is the one committed."""
    content: str = ""
    """Digest of what was made, clocks left out: what the next stage depends on. Equal when made again alike."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """What it was made from: name → digest."""
    config_digest: str = ""
    """Digest of the config sections that the stage reads."""
    config_revision: int = 0
    """Which frozen config of the run."""
    policy_version: int = 0
    """Weights that generated the iteration's samples."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Rows by status, and issued = kept + dropped + carried."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    """Where the time went, by part."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    """What else it made: checkpoint, weights, probes."""
    started: str = ""
    finished: str = ""
    host: str = ""
    job: dict[str, str] = Field(default_factory=dict)
    """SLURM ids, where there are any."""
    code: str = ""
    """Version of slime-stages, and its git commit from a checkout."""

    def to_bytes(self) -> builtins.bytes:
        return orjson.dumps(sealed(self.model_dump()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_manifest(path: Path) -> Manifest:
    """MissingInputError if there is none, DataError if it is not a whole manifest of a version we know."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read()
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no manifest {path}") from error
    try:
        values = orjson.loads(text)
        if values.get("schema_version") != MANIFEST_VERSION:
            raise DataError(
                f"{path} is a manifest of version {values.get('schema_version')}; this reads {MANIFEST_VERSION}"
            )
        return Manifest(**unsealed(values, path))
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a whole manifest: {reason}") from error


def data_path(manifest_path: Path, manifest: Manifest) -> Path:
    assert manifest.data is not None
    return manifest_path.with_name(manifest.data)


def check_size(manifest_path: Path, manifest: Manifest) -> None:
    """A quick look at the data file: MissingInputError if it is gone, DataError if its size differs.

    Without paths, which take longer to make than the look.
    """
    assert manifest.data is not None
    path = os.path.join(os.path.dirname(manifest_path), manifest.data)
    try:
        size = os.stat(path).st_size
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} is gone, but its manifest is there") from error
    if size != manifest.bytes:
        raise DataError(f"{path} has {size} bytes, its manifest says {manifest.bytes}")


def check_data(manifest_path: Path, manifest: Manifest) -> Path:
    """The data file, after a look that it is the one committed.

    MissingInputError if it is gone, DataError if size or digest differ.
    """
    check_size(manifest_path, manifest)
    path = data_path(manifest_path, manifest)
    if (digest := digest_file(path)) != manifest.digest:
        raise DataError(f"{path} has digest {digest}, its manifest says {manifest.digest}")
    return path


def commit_data(
    manifest: Manifest, *, temporary: Path, manifest_path: Path, folders: Mapping[Path, Path] | None = None
) -> bool:
    """Publish a written temporary file and its manifest; False if another attempt did so first.

    `folders`, finished ones by the place where they belong, come with it.
    """
    assert manifest.data is not None
    stamped = manifest.model_copy(
        update={
            "bytes": temporary.stat().st_size,
            "digest": digest_file(temporary),
            **_circumstances(),
        }
    )
    outputs = {manifest_path.with_name(manifest.data): temporary, **(folders or {})}
    return commit(outputs, manifest_path, stamped.to_bytes())


def commit_manifest(manifest: Manifest, manifest_path: Path, folders: Mapping[Path, Path] | None = None) -> bool:
    """Publish a manifest without a data file, and `folders` with it; False if another attempt did so first."""
    stamped = manifest.model_copy(update=_circumstances()).to_bytes()
    if folders:
        manifest_path.parent.mkdir(parents=True, exist_ok=True)
        return commit(folders, manifest_path, stamped)
    return create_file(manifest_path, stamped)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _circumstances() -> dict[str, Any]:
    slurm = {name: value for name, value in os.environ.items() if name in _SLURM_NAMES}
    return {"finished": now(), "host": socket.gethostname(), "job": slurm, "code": code_version()}


_SLURM_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
)


@cache
def code_version() -> str:
    """`0.1.0`, or `0.1.0+g1a2b3c4d` (with `.dirty`) from a git checkout."""
    folder = Path(__file__).parent
    command = ["git", "--no-optional-locks", "-C", str(folder), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return __version__
    return f"{__version__}+g{found.stdout.strip()}" if found.returncode == 0 else __version__
