"""Engines that several jobs share get other weights when nobody uses them, and each set of weights once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slime_stages.errors import DataError, RetryableError, UsageError
from slime_stages.serving.bring import are_as_new, bring_all, bring_running
from slime_stages.serving.handle import EngineHandle
from slime_stages.weights.publish import finish_folder, publish_link, unpublished_folder
from slime_stages.weights.record import engine_label
from tests.slime_stages.serving.fake_engine import FakeEngine, serving


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    target = tmp_path / "000003"
    with unpublished_folder(target) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
        finish_folder(folder, 3)
        folder.rename(target)
    return target


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(FakeEngine(weight_version="2@0a1b2c3d"))) for _ in range(2)]


def handles(engines: list[FakeEngine]) -> list[EngineHandle]:
    return [EngineHandle(engine.url) for engine in engines]


def test_all_engines_get_the_weights_once(weights: Path, engines: list[FakeEngine]) -> None:
    for _ in range(2):
        bring_all(handles(engines), weights, 3, wait_until_idle=10)

    assert [engine.loaded for engine in engines] == [[str(weights)], [str(weights)]]
    assert {engine.weight_version for engine in engines} == {engine_label(weights, 3)}


def test_weights_are_not_taken_from_a_job_that_uses_them(weights: Path, engines: list[FakeEngine]) -> None:
    engines[1].request_count = 4

    with pytest.raises(RetryableError, match="other jobs still use the engines, with weights 2@0a1b2c3d"):
        bring_all(handles(engines), weights, 3, wait_until_idle=0)

    assert [engine.loaded for engine in engines] == [[], []]


def test_engines_get_the_weights_when_the_other_job_has_done_with_them(
    weights: Path, engines: list[FakeEngine]
) -> None:
    engines[1].request_count = 4

    def finish() -> None:
        time.sleep(1.5)
        engines[1].request_count = 0

    threading.Thread(target=finish).start()
    bring_all(handles(engines), weights, 3, wait_until_idle=30)

    assert [engine.loaded for engine in engines] == [[str(weights)], [str(weights)]]


def test_altered_weights_are_loaded_by_no_engine(weights: Path, engines: list[FakeEngine]) -> None:
    (weights / "model.safetensors").write_bytes(b"weightz")

    with pytest.raises(DataError, match="were altered"):
        bring_all(handles(engines), weights, 3)

    assert [engine.loaded for engine in engines] == [[], []]


def test_engines_whose_encoders_keep_the_old_weights_get_no_new_ones(weights: Path) -> None:
    with serving(FakeEngine(encoder_urls=["http://a:1"])) as engine:
        with pytest.raises(UsageError, match="encoded by engines that keep the weights of /model, not those of"):
            bring_all(handles([engine]), weights, 3)

        assert engine.loaded == []


def test_version_0_may_go_to_engines_whose_encoders_have_the_model_that_it_links_to(
    tiny_model: Path, tmp_path: Path
) -> None:
    publish_link(tiny_model, tmp_path / "000000")
    with serving(FakeEngine(encoder_urls=["http://a:1"], model_path=str(tiny_model))) as engine:
        bring_all(handles([engine]), tmp_path / "000000", 0)

        assert engine.loaded == [str(tmp_path / "000000")]


def test_engines_at_work_are_paused_for_new_weights_and_go_on(weights: Path, engines: list[FakeEngine]) -> None:
    engines[0].request_count = 4

    bring_running(handles(engines), weights, 3)
    bring_running(handles(engines), weights, 3)

    assert [engine.controlled for engine in engines] == [["pause", "load", "continue"]] * 2
    assert are_as_new(handles(engines), weights, 3)


def test_an_engine_goes_on_with_its_old_weights_where_the_new_ones_are_refused(
    weights: Path, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineHandle, "update_weights", _refuse)

    with pytest.raises(DataError, match="refused"):
        bring_running(handles(engines[:1]), weights, 3)

    assert engines[0].controlled == ["pause", "continue"]


def _refuse(*_: object, **__: object) -> None:
    raise DataError("refused")


def test_newer_weights_of_the_run_stay_and_those_of_another_run_do_not(
    weights: Path, engines: list[FakeEngine]
) -> None:
    newer = weights.with_name("000012")
    with unpublished_folder(newer) as folder:
        (folder / "model.safetensors").write_bytes(b"newer")
        finish_folder(folder, 12)
        folder.rename(newer)
    engines[0].weight_version, engines[1].weight_version = engine_label(newer, 12), "12@ffffffff"

    bring_running(handles(engines), weights, 3)

    assert [engine.loaded for engine in engines] == [[], [str(weights)]]
