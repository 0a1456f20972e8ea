"""New weights are told to engines that serve the run and have nothing to do; nobody's trouble with them is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.run.rundir import RunDir
from slime_stages.serving.registry import SERVICE, register_engine
from slime_stages.weights.publish import finish_folder, unpublished_folder
from slime_stages.weights.record import engine_label
from stages.sync.tell import tell_engines
from tests.slime_stages.config.settings import resolved
from tests.slime_stages.serving.fake_engine import FakeEngine, serving


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """With weights of version 1."""
    run = RunDir(tmp_path)
    with unpublished_folder(run.weights_path(1)) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
        finish_folder(folder, 1)
        folder.rename(run.weights_path(1))
    return run


def tell(run: RunDir, url: str, *, kind: str = SERVICE, **settings: object) -> None:
    register_engine(run.engines_path, "service-1", url=url, pid=1, kind=kind)
    tell_engines(run, resolved(**{"serving_mode": "service", **settings}).config, run.weights_path(1), 1)


def test_engines_of_serve_get_the_new_weights(run: RunDir) -> None:
    with serving(FakeEngine()) as engine:
        tell(run, engine.url)

    assert engine.loaded == [str(run.weights_path(1))]
    assert engine.weight_version == engine_label(run.weights_path(1), 1)


@pytest.mark.parametrize("settings", [{"staleness": 1}, {"serving_mode": "job"}, {"kind": "warm"}])
def test_others_are_left_alone(run: RunDir, settings: dict[str, object]) -> None:
    with serving(FakeEngine()) as engine:
        tell(run, engine.url, **settings)  # type: ignore[arg-type]

    assert engine.loaded == []


def test_engines_at_work_are_left_to_the_next_rollout(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeEngine()) as engine:
        engine.request_count = 2
        tell(run, engine.url)

    assert engine.loaded == []
    assert "are in use: the next rollout gives them weights 1" in capsys.readouterr().err


def test_engines_that_are_gone_are_no_error(run: RunDir) -> None:
    tell(run, "http://127.0.0.1:1")


def test_a_rollout_that_streams_has_them_at_once_whatever_its_lag(run: RunDir) -> None:
    with serving(FakeEngine()) as engine:
        engine.request_count = 2
        tell(run, engine.url, rollout_streaming=True, staleness=1, use_tis=True)

    assert engine.controlled == ["pause", "load", "continue"]
