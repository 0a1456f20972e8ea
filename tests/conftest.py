"""Fixtures that more than one room uses: real parts, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.tiny_model import make_tiny_model, make_tiny_prompts


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a random Qwen3; do not write to it."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def tiny_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 sums as messages, with labels; do not write to it."""
    return make_tiny_prompts(tmp_path_factory.mktemp("prompts") / "sums.jsonl", 64)
