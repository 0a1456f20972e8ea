"""One attempt at a piece of work, and what of it counts."""

from __future__ import annotations

from pathlib import Path

from slime_stages.run.commit import (
    written_file,
)
from slime_stages.run.manifest import Manifest, check_data, commit_data, read_manifest


def publish(folder: Path, content: bytes) -> bool:
    """One attempt at the same piece of work."""
    with written_file(folder / "shard.parquet") as temporary:
        temporary.write_bytes(content)
    manifest = Manifest(kind="rollout", run_id=content.decode(), iteration=0, data="shard.parquet")
    return commit_data(manifest, temporary=temporary, manifest_path=folder / "shard.json")


def committed(folder: Path) -> bytes | None:
    """The data that counts, after a look that it is the manifest's; None if there is none."""
    path = folder / "shard.json"
    if not path.exists():
        return None
    manifest = read_manifest(path)
    data = check_data(path, manifest).read_bytes()
    assert data == manifest.run_id.encode()
    return data


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
