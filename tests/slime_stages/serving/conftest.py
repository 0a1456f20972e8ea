"""The server that all tests share, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from slime_stages.serving.client import EngineClient
from slime_stages.serving.engine import Engine
from tests.fixtures.tiny_model import VOCABULARY_SIZE


@pytest.fixture(scope="session")
def engine(tiny_engine: Engine) -> Engine:
    """Serves the tiny model as version 0."""
    tiny_engine.update_weights(tiny_engine.model, "0")
    return tiny_engine


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url, vocab_size=VOCABULARY_SIZE, timeout_seconds=120) as client:
        yield client
