"""What encoders and the engines that send them images are told of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_stages.serving.encoders import REGISTRY_PORT, introduce
from slime_stages.serving.engine import Engine, EngineOptions
from tests.slime_stages.serving.fake_engine import FakeEngine, serving


class FakeRegistry(FakeEngine):
    """Where an engine is told of encoders."""

    def answer(self, path: str, body: dict[str, Any], routing_key: str | None) -> Any:
        assert path == "/register_encoder_url"
        self.controlled.append(body["url"])
        return "OK"


def engine_of(folder: Path, **layout: object) -> Engine:
    return Engine(folder, "0", log=folder / "engine.log", options=EngineOptions(layout=layout))


def test_an_engine_is_told_of_an_encoder_and_of_nothing_else(tmp_path: Path) -> None:
    encoder, engine = engine_of(tmp_path, encoder_only=True), engine_of(tmp_path, language_only=True)
    encoder.url = "http://a:1"

    with serving(FakeRegistry()) as registry:
        engine.ports = {REGISTRY_PORT: int(registry.url.rpartition(":")[2])}
        introduce(encoder, engine)
        introduce(engine, encoder)
        introduce(engine, engine)

        assert registry.controlled == ["http://a:1"]


def test_an_engine_that_does_not_answer_is_told_later(tmp_path: Path) -> None:
    encoder, engine = engine_of(tmp_path, encoder_only=True), engine_of(tmp_path, language_only=True)
    engine.ports = {REGISTRY_PORT: 1}

    introduce(encoder, engine)
