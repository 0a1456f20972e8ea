"""Engines that get newer weights while they generate: what runs goes on with them, from the next token on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from slime_stages.errors import RetryableError
from slime_stages.serving.bring import are_as_new, bring_running
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, say
from stages.rollout.engines import external_engines, own_fleet, service_record

RESTART_SECONDS = 600.0
"""For an engine that has died to be started again."""
PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEngines:
    """Where requests go, and the engines behind it that get newer weights."""

    served: Served
    handles: Sequence[EngineHandle]
    patience_seconds: float = 0.0
    """For others to give them newer weights, who are as likely to."""

    async def bring(self, stage: Stage, *, look: Callable[[], None]) -> None:
        """Have them generate with the plan's weights; newer ones, which others may have given them, stay.

        RetryableError if one of them is not back in time. `look` is called in between, and may raise.
        """
        version = stage.plan.policy_version
        weights = stage.run.weights_path(version)
        patient_until = time.monotonic() + self.patience_seconds
        deadline = patient_until + RESTART_SECONDS
        while True:
            try:
                if await asyncio.to_thread(are_as_new, self.handles, weights, version):
                    return
                if time.monotonic() >= patient_until:
                    await asyncio.to_thread(bring_running, self.handles, weights, version)
                    return
            except RetryableError as error:
                if time.monotonic() > deadline:
                    raise
                say(f"warning: {error.message}; trying again")
            look()
            await asyncio.sleep(PAUSE_SECONDS)


@contextmanager
def live_engines(stage: Stage) -> Iterator[LiveEngines]:
    """Engines that have the policy version of the plan, or a newer one. What was started for it ends with the block."""
    mode = stage.config.serving.serving_mode
    version = stage.plan.policy_version
    weights = stage.run.weights_path(version)
    if mode == "external":
        with external_engines(stage, lambda handles: bring_running(handles, weights, version)) as (served, handles):
            yield _live(served, handles, PATIENCE_SECONDS if stage.call.shard else 0.0)
        return
    record = None
    if mode == "service":
        record = service_record(stage, lambda handles, left: bring_running(handles, weights, version))
    if record is not None:
        yield _live(record.served(None), record.handles(), PATIENCE_SECONDS)
        return
    with own_fleet(stage, weights) as fleet:
        served = replace(fleet.served(), is_exclusive=True)
        yield _live(served, [EngineHandle(url) for url in fleet.updated_urls()], 0.0)


def _live(served: Served, handles: Sequence[EngineHandle], patience_seconds: float) -> LiveEngines:
    """Engines whose answers may name any version."""
    served = replace(served, weight_version=None)
    return LiveEngines(served=served, handles=tuple(handles), patience_seconds=patience_seconds)
