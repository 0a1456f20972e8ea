"""An engine kept warm between iterations. A cache: on any loss, rollout jobs start engines of their own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from slime_stages.errors import SlimeStagesError
from slime_stages.launch.start_run import current_revision
from slime_stages.rundir import RunDir
from slime_stages.serving.engine import Engine
from slime_stages.serving.options import engine_options
from slime_stages.serving.registry import register_engine
from slime_stages.stage import read_config, say
from slime_stages.weights.record import engine_label


class WarmEngine:
    """Starts an engine in the background when asked to, registers it in the run, and stops it at the end."""

    def __init__(self, run: RunDir, *, policy_version: int) -> None:
        self._run = run
        self._version = policy_version
        self._engine: Engine | None = None
        self._registration: Path | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)

    def start(self) -> None:
        """Begin to start it, once: who needs it waits."""
        config = read_config(self._run, current_revision(self._run))
        if self._engine is None and config.serving.serving_mode == "job":
            weights = self._run.weights_path(self._version)
            try:
                label = engine_label(weights, self._version)
            except SlimeStagesError as error:
                say(f"warning: no warm engine: {error}")
                return
            self._engine = Engine(
                weights,
                label,
                log=self._run.log_path("engine-warm"),
                options=engine_options(config),
            )
            self._thread.start()

    def wait(self) -> None:
        """Until the engine serves, or has failed; then rollout starts its own and says what is wrong with it."""
        self.start()
        if self._engine is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is None:
            return
        self._engine.stop()
        self._thread.join()
        if self._registration is not None:
            self._registration.unlink(missing_ok=True)

    def _start(self) -> None:
        assert self._engine is not None
        try:
            self._engine.start()
            self._registration = register_engine(
                self._run.engines_path,
                "warm",
                url=self._engine.url,
                pid=self._engine.pid,
                weight_version=str(self._version),
            )
        except SlimeStagesError as error:
            say(f"warning: no warm engine: {error}")
