"""Engines kept warm between iterations. A cache: on any loss, rollout jobs start engines of their own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from slime_stages.config.hooks import uses_engines
from slime_stages.errors import SlimeStagesError
from slime_stages.launch.start_run import current_revision
from slime_stages.run.rundir import RunDir
from slime_stages.serving.devices import visible_devices
from slime_stages.serving.fleet import Fleet
from slime_stages.serving.layout import layout_of
from slime_stages.serving.registry import register_fleet
from slime_stages.stage import read_config, say
from slime_stages.weights.record import engine_label

NAME = "warm"


class WarmEngine:
    """Starts the engines in the background when asked to, registers them in the run, and stops them at the end."""

    def __init__(self, run: RunDir, *, policy_version: int) -> None:
        self._run = run
        self._version = policy_version
        self._fleet: Fleet | None = None
        self._registration: Path | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)

    def start(self) -> None:
        """Begin to start them, once: who needs them waits."""
        config = read_config(self._run, current_revision(self._run))
        splits = ["train", *(name for name, _ in config.eval.datasets)]
        is_needed = any(uses_engines(config, split) for split in splits)
        if self._fleet is None and is_needed and config.serving.serving_mode == "job":
            weights = self._run.weights_path(self._version)
            try:
                self._fleet = Fleet(
                    config=config,
                    layout=layout_of(config, visible_devices()),
                    weights=weights,
                    label=engine_label(weights, self._version),
                    log=self._run.log_path,
                    log_name=f"engine-{NAME}",
                    on_change=self._register,
                )
            except SlimeStagesError as error:
                say(f"warning: no warm engine: {error}")
                return
            self._thread.start()

    def wait(self) -> None:
        """Until the engines serve, or have failed; then rollout starts its own and says what is wrong with them."""
        self.start()
        if self._fleet is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fleet is None:
            return
        self._fleet.stop()
        self._thread.join()
        if self._registration is not None:
            self._registration.unlink(missing_ok=True)

    def _start(self) -> None:
        assert self._fleet is not None
        try:
            self._fleet.start()
            self._register()
        except SlimeStagesError as error:
            say(f"warning: no warm engine: {error}")

    def _register(self) -> None:
        fleet = self._fleet
        assert fleet is not None
        self._registration = register_fleet(
            self._run.engines_path,
            NAME,
            fleet.served(),
            updated_urls=fleet.updated_urls(),
            kind=NAME,
            weight_version=fleet.label,
            has_gpus=bool(fleet.layout.devices),
        )
