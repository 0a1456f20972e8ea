"""Weights are read for their digests before an engine loads them, and not again while it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.weights.publish import publish_folder, unpublished_folder
from slime_stages.weights.record import engine_label
from stages.rollout.engines import bring_to


class FakeEngine:
    """Takes any weights that it is given."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.loaded: list[Path] = []

    def version(self) -> str:
        return self._version

    def update_weights(self, path: Path, version: str) -> None:
        self._version = version
        self.loaded.append(path)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    target = tmp_path / "000003"
    with unpublished_folder(target) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
        publish_folder(folder, target)
    return target


def test_an_engine_is_given_the_weights_that_it_does_not_have(weights: Path) -> None:
    engine: Any = FakeEngine("2@0a1b2c3d")

    bring_to(engine, weights, 3)
    bring_to(engine, weights, 3)

    assert engine.loaded == [weights]
    assert engine.version() == engine_label(weights, 3)


def test_altered_weights_of_the_same_size_are_refused_before_an_engine_loads_them(weights: Path) -> None:
    (weights / "model.safetensors").write_bytes(b"weightz")
    engine: Any = FakeEngine("2@0a1b2c3d")

    with pytest.raises(DataError, match=r"000003 were altered: model\.safetensors"):
        bring_to(engine, weights, 3)

    assert engine.loaded == []
