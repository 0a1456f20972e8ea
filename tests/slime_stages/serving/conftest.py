"""One real SGLang server for all tests of the room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine, EngineOptions
from tests.fixtures.tiny_model import VOCABULARY_SIZE


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Serves `tiny_model` as version 7; a test that loads other weights loads these again."""
    log = tmp_path_factory.mktemp("engine") / "sglang.log"
    with Engine(tiny_model, "7", log=log, options=EngineOptions(device="cpu", start_timeout_seconds=500)) as engine:
        yield engine


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url, vocab_size=VOCABULARY_SIZE, timeout_seconds=120) as client:
        yield client
