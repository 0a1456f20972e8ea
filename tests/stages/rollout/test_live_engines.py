"""Engines that a stream gives newer weights, or lets others give them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime_stages.drain import Drained
from slime_stages.run.rundir import RunDir
from slime_stages.serving.bring import bring_running
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.served import Served
from slime_stages.weights.publish import finish_folder, unpublished_folder
from stages.rollout import live_engines
from stages.rollout.live_engines import LiveEngines
from tests.slime_stages.serving.fake_engine import FakeEngine, serving


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a plan that wants weights 3, which are published."""
    monkeypatch.setattr(live_engines, "PAUSE_SECONDS", 0.05)
    run = RunDir(tmp_path)
    with unpublished_folder(run.weights_path(3)) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
        finish_folder(folder, 3)
        folder.rename(run.weights_path(3))
    return SimpleNamespace(run=run, plan=SimpleNamespace(policy_version=3))


def live(url: str, *, patience_seconds: float = 0.0) -> LiveEngines:
    return LiveEngines(
        served=Served(urls=(url,), engine_count=1), handles=(EngineHandle(url),), patience_seconds=patience_seconds
    )


def go_on() -> None:
    pass


async def test_they_get_the_weights_of_the_plan_once(stage: Any) -> None:
    with serving(FakeEngine(weight_version="2@ab")) as engine:
        await live(engine.url).bring(stage, look=go_on)
        await live(engine.url).bring(stage, look=go_on)

    assert engine.controlled == ["pause", "load", "continue"]


async def test_where_somebody_else_is_about_to_they_are_left_to_that_one_for_a_while(stage: Any) -> None:
    with serving(FakeEngine(weight_version="2@ab")) as engine:

        def sync() -> None:
            time.sleep(0.3)
            bring_running([EngineHandle(engine.url)], stage.run.weights_path(3), 3)

        other = threading.Thread(target=sync)
        other.start()
        await live(engine.url, patience_seconds=20.0).bring(stage, look=go_on)
        other.join()

        assert engine.controlled == ["pause", "load", "continue"]


async def test_who_waits_for_an_engine_that_is_gone_can_be_told_to_end(
    stage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def told_to_end() -> None:
        raise Drained("SIGTERM")

    with pytest.raises(Drained):
        await live("http://127.0.0.1:9").bring(stage, look=told_to_end)

    assert "warning: http://127.0.0.1:9/model_info does not answer" in capsys.readouterr().err
