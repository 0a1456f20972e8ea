"""Digests: of bytes, of files of any size, and of JSON whatever the order of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import DataError
from slime_stages.run import digest
from slime_stages.run.digest import digest_bytes, digest_file, digest_json, sealed, unsealed


def test_a_digest_is_xxh3_128_in_hex() -> None:
    assert digest_bytes(b"") == "99aa06d3014798d86001c324468d497f"


def test_a_file_has_the_digest_of_its_bytes_over_all_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "CHUNK_BYTES", 4)
    (tmp_path / "data").write_bytes(b"0123456789")

    assert digest_file(tmp_path / "data") == digest_bytes(b"0123456789")


def test_the_order_of_keys_does_not_matter_and_values_do() -> None:
    assert digest_json({"a": 1, "b": {"c": 2, "d": 3}}) == digest_json({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": 2})
    assert digest_json([1, 2]) != digest_json([2, 1])


def test_a_sealed_record_tells_whether_a_value_was_altered(tmp_path: Path) -> None:
    record = sealed({"rows": 3, "names": ["a", "b"]})

    assert unsealed(record, tmp_path) == {"names": ["a", "b"], "rows": 3}
    with pytest.raises(DataError, match="was altered"):
        unsealed({**record, "rows": 4}, tmp_path)


def test_a_record_without_a_seal_is_taken_as_it_is(tmp_path: Path) -> None:
    assert unsealed({"rows": 3}, tmp_path) == {"rows": 3}
