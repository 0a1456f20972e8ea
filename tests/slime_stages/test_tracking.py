"""Metrics reach TensorBoard's files and Weights & Biases, and neither of them can stop a training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from slime_stages.run.rundir import RunDir
from slime_stages.tracking import tensorboard_folder, track
from tests.slime_stages.config.settings import resolved
from tests.stages.train.test_batch import PLAN

METRICS = {"train/loss": 0.5, "rollout/raw_reward": 1.0, "rollout/nothing": None}


def run_in(folder: Path) -> RunDir:
    run = RunDir(folder / "my-run")
    run.create()
    return run


def test_tensorboard_has_every_metric_at_its_iteration(tmp_path: Path) -> None:
    run, config = run_in(tmp_path), resolved(use_tensorboard=True, tb_project_name="sums").config

    for iteration in (3, 4):
        track(run, PLAN.model_copy(update={"iteration": iteration}), config, METRICS)

    folder = tensorboard_folder(run, config.tracking)
    assert folder == run.root / "tensorboard" / "sums" / "my-run"
    events = EventAccumulator(str(folder)).Reload()
    assert sorted(events.Tags()["tensors"]) == ["rollout/raw_reward", "train/loss"]
    assert [event.step for event in events.Tensors("train/loss")] == [3, 4]


class FakeWandb(SimpleNamespace):
    """Notes what it is told, as the package would."""

    def init(self, **settings: Any) -> FakeWandb:
        self.settings = settings
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes = {**getattr(self, "axes", {}), name: step_metric}

    def log(self, values: dict[str, float]) -> None:
        self.logged = values

    def finish(self) -> None:
        self.finished = True


def test_weights_and_biases_goes_on_with_the_one_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = resolved(use_wandb=True, wandb_group="first", num_steps_per_rollout=2, wandb_always_use_train_step=True)

    run = run_in(tmp_path)

    track(run, PLAN.model_copy(update={"iteration": 3}), config.config, METRICS)

    settings = fake.settings
    assert (settings["id"], settings["mode"], settings["group"]) == (run.run_id(), "offline", "first")
    assert settings["config"]["lr"] == 1e-6
    assert fake.logged == {"train/loss": 0.5, "rollout/raw_reward": 1.0, "train/step": 6, "rollout/step": 6}
    assert fake.axes["train/*"] == "train/step"
    assert fake.finished


def test_a_package_that_is_not_there_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)

    track(run_in(tmp_path), PLAN, resolved(use_wandb=True).config, METRICS)

    assert "warning: metrics of iteration 0 are in RUN/metrics only" in capsys.readouterr().err
