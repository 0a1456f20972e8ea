"""Weights are read for their digests before an engine loads them, and not again while it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError, RetryableError
from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.start_run import start_run
from slime_stages.run.rundir import RunDir
from slime_stages.serving.registry import SERVICE, register_fleet
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, StageCall, read_config
from slime_stages.weights.publish import finish_folder, unpublished_folder
from slime_stages.weights.record import engine_label
from stages.rollout.engines import bring_to, ready_engines, service_engines, warm_engines
from tests.slime_stages.config.settings import resolved
from tests.slime_stages.serving.fake_engine import FakeEngine as Server
from tests.slime_stages.serving.fake_engine import serving


class FakeEngine:
    """Takes any weights that it is given."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.loaded: list[Path] = []

    def version(self) -> str:
        return self._version

    def server_info(self) -> dict[str, Any]:
        return {"speculative_draft_model_path": None}

    def update_weights(self, path: Path, version: str) -> None:
        self._version = version
        self.loaded.append(path)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    target = tmp_path / "000003"
    with unpublished_folder(target) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")
        finish_folder(folder, 3)
        folder.rename(target)
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


@pytest.fixture
def stage(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> Stage:
    """Of a run whose engines are kept by `serve`."""
    run = RunDir(tmp_path / "run")
    settings = {"serving_mode": "service", "service_wait_seconds": 0.5, "apply_chat_template": True}
    keys = {"input_key": "prompt", "label_key": "label", "hf_checkpoint": str(tiny_model)}
    start_run(run, resolved(prompt_data=str(tiny_prompts), **keys, **settings).config)
    plan = ensure_plan(run, 0)
    call = StageCall(stage="rollout", run=run.root, iteration=0, shard=0)
    return Stage(
        call=call,
        run=run,
        plan=plan,
        config=read_config(run, plan.config_revision),
        manifest_path=run.root / "manifest.json",
        inputs={},
        config_digest="",
    )


def keep(stage: Stage, engine: Server, *, has_gpus: bool = False, kind: str = SERVICE) -> None:
    """Leave the record of a service with one engine."""
    served = Served(urls=(engine.url,), engine_count=2, engine_urls=(engine.url,))
    register_fleet(
        stage.run.engines_path,
        "service-1",
        served,
        updated_urls=[engine.url],
        kind=kind,
        weight_version="0",
        has_gpus=has_gpus,
    )


def test_a_rollout_uses_the_engines_of_serve_once_they_have_its_weights(stage: Stage) -> None:
    weights = stage.run.weights_path(0)
    with serving(Server(weight_version="9@0a1b2c3d")) as engine:
        keep(stage, engine)

        with ready_engines(stage) as served:
            label = engine_label(weights, 0)

    assert served == Served(urls=(engine.url,), engine_count=2, engine_urls=(engine.url,), weight_version=label)
    assert (engine.loaded, engine.weight_version) == ([str(weights)], label)


def test_engines_that_another_job_uses_are_left_to_it(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Server(weight_version="9@0a1b2c3d")) as engine:
        engine.request_count = 1
        keep(stage, engine)

        assert service_engines(stage, stage.run.weights_path(0)) is None

    assert engine.loaded == []
    assert "after 0.5 s: other jobs still use the engines" in capsys.readouterr().err


def test_a_rollout_without_a_gpu_does_not_replace_engines_that_had_some(stage: Stage) -> None:
    gone = Server()
    gone.url = "http://127.0.0.1:1"
    keep(stage, gone, has_gpus=True)

    with pytest.raises(RetryableError, match="nobody serves; this job has no GPU to start its own on"):
        service_engines(stage, stage.run.weights_path(0))


def test_warm_engines_are_used_where_there_are_any(stage: Stage) -> None:
    assert warm_engines(stage, stage.run.weights_path(0)) is None
    with serving(Server()) as engine:
        keep(stage, engine, kind="warm")

        served = warm_engines(stage, stage.run.weights_path(0))

    assert served is not None
    assert served.urls == (engine.url,)
    assert not served.is_exclusive
