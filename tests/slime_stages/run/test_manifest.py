"""Manifests: what is written is read, and what is not a whole manifest is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import orjson
import pytest
import xxhash

from slime_stages.errors import DataError, MissingInputError
from slime_stages.run.manifest import Manifest, check_data, code_version, commit_data, commit_manifest, read_manifest


def manifest(data: str | None = None) -> Manifest:
    return Manifest(kind="rollout", run_id="run-1", iteration=4, shard=2, data=data, inputs={"plan": "ab"})


def test_a_committed_manifest_says_what_was_made_where_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    temporary = tmp_path / "written"
    temporary.write_bytes(b"rows")

    assert commit_data(manifest("shard.parquet"), temporary=temporary, manifest_path=tmp_path / "shard.json")

    found = read_manifest(tmp_path / "shard.json")
    assert (found.kind, found.iteration, found.shard, found.inputs) == ("rollout", 4, 2, {"plan": "ab"})
    assert (found.bytes, found.digest) == (4, xxhash.xxh3_128_hexdigest(b"rows"))
    assert (found.host, found.job["SLURM_JOB_ID"]) == (socket.gethostname(), "1234")
    assert found.finished > "2024"
    assert check_data(tmp_path / "shard.json", found).read_bytes() == b"rows"


def test_a_manifest_without_data_is_committed_once(tmp_path: Path) -> None:
    path = tmp_path / "sync" / "manifest.json"

    assert commit_manifest(manifest(), path)
    assert not commit_manifest(manifest(), path)

    assert read_manifest(path).data is None


def test_a_missing_manifest_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="there is no manifest"):
        read_manifest(tmp_path / "shard.json")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff", b'{"schema_version": 1}'])
def test_what_is_no_whole_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "shard.json"
    path.write_bytes(text)

    with pytest.raises(DataError, match="is not a whole manifest") as caught:
        read_manifest(path)

    assert caught.value.exit_code == 65


def test_a_newer_manifest_and_one_with_unknown_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.json"
    values = manifest().model_dump()

    path.write_bytes(orjson.dumps({**values, "schema_version": 2}))
    with pytest.raises(DataError, match="a manifest of version 2; this reads 1"):
        read_manifest(path)
    path.write_bytes(orjson.dumps({**values, "colour": "red"}))
    with pytest.raises(DataError, match="is not a whole manifest"):
        read_manifest(path)


def test_the_code_version_starts_with_the_release() -> None:
    assert code_version().startswith("0.")


def test_a_manifest_with_an_altered_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.json"
    commit_manifest(manifest(), path)

    path.write_bytes(path.read_bytes().replace(b'"iteration": 4', b'"iteration": 5'))

    with pytest.raises(DataError, match="was altered"):
        read_manifest(path)
