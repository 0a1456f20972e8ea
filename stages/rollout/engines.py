"""Engines that serve the plan's weights: warm ones where there are any, a service, external ones, or our own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slime_stages.errors import DataError, RetryableError, SlimeStagesError
from slime_stages.progress import Progress
from slime_stages.serving.bring import bring_all, bring_to
from slime_stages.serving.devices import visible_devices
from slime_stages.serving.external import before_external, probe_all
from slime_stages.serving.fleet import Fleet
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.launch import has_accelerator
from slime_stages.serving.layout import layout_of
from slime_stages.serving.models import host_and_port
from slime_stages.serving.registry import SERVICE, EngineRecord, find_engines, read_records
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, say
from slime_stages.weights.publish import check_weights, verify_weights
from slime_stages.weights.record import engine_label

__all__ = ["bring_to", "host_and_port", "ready_engines", "vocabulary_size"]

SERVICE_POLL_SECONDS = 2.0


@contextmanager
def ready_engines(stage: Stage) -> Iterator[Served]:
    """Engines that have the policy version of the plan; what was started for it ends with the block."""
    weights = stage.run.weights_path(stage.plan.policy_version)
    check_weights(weights)
    mode = stage.config.serving.serving_mode
    if mode == "external":
        version = stage.plan.policy_version
        with external_engines(stage, lambda handles: bring_all(handles, weights, version)) as (served, _):
            yield served
        return
    kept = service_engines(stage, weights) if mode == "service" else warm_engines(stage, weights)
    if kept is not None:
        yield kept
        return
    with own_fleet(stage, weights) as fleet:
        yield replace(fleet.served(), is_exclusive=True)


@contextmanager
def external_engines(
    stage: Stage, bring: Callable[[Sequence[EngineHandle]], None]
) -> Iterator[tuple[Served, list[EngineHandle]]]:
    """Engines that somebody else runs, once `bring` has given them their weights, and the handles to do so again."""
    engines = probe_all(stage.config.serving.rollout_external_engine_addrs or (), stage.config)
    working = [engine.handle for engine in engines if engine.worker_type != "encoder"]
    bring(working)
    with before_external(engines, stage.config, stage.run.log_path) as served:
        yield served, working


@contextmanager
def own_fleet(stage: Stage, weights: Path) -> Iterator[Fleet]:
    """Engines in this job's own allocation."""
    verify_weights(weights)
    layout = layout_of(stage.config, visible_devices())
    with Progress("engine", total=None) as progress:
        fleet = Fleet(
            config=stage.config,
            layout=layout,
            weights=weights,
            label=engine_label(weights, stage.plan.policy_version),
            log=stage.run.log_path,
            log_name=f"engine-{stage.plan.iteration:06d}-{stage.call.shard or 0:05d}",
            progress=lambda seconds, line: progress.update(int(seconds), log=line[-60:]),
        )
        fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()


def warm_engines(stage: Stage, weights: Path) -> Served | None:
    """Engines that somebody keeps warm for this run, with the right weights; None if there are none that work."""
    version = stage.plan.policy_version
    for record in find_engines(stage.run.engines_path):
        try:
            bring_all(record.handles(), weights, version)
        except SlimeStagesError as error:
            say(f"warning: the warm engine {record.url} is of no use: {error}")
        else:
            return record.served(engine_label(weights, version))
    return None


def service_engines(stage: Stage, weights: Path) -> Served | None:
    """The engines of `slime-stages serve`, waited for and with the right weights; None, said, to start own ones.

    RetryableError if these would have to do without the GPUs that the service has.
    """
    version = stage.plan.policy_version
    record = service_record(stage, lambda handles, left: bring_all(handles, weights, version, wait_until_idle=left))
    return None if record is None else record.served(engine_label(weights, version))


def service_record(stage: Stage, bring: Callable[[Sequence[EngineHandle], float], None]) -> EngineRecord | None:
    """The same by their record, once `bring` has given them their weights within the seconds that it is told."""
    wait = stage.config.serving.service_wait_seconds
    deadline, reason = time.monotonic() + wait, "nobody serves"
    while True:
        for record in find_engines(stage.run.engines_path, kind=SERVICE):
            try:
                bring(record.handles(), max(0.0, deadline - time.monotonic()))
            except SlimeStagesError as error:
                reason = str(error)
            else:
                return record
        if time.monotonic() > deadline:
            break
        time.sleep(SERVICE_POLL_SECONDS)
    if not has_accelerator() and any(one.has_gpus for one in read_records(stage.run.engines_path)):
        raise RetryableError(
            f"the engines of `serve` are of no use after {wait:g} s: {reason}; this job has no GPU to start its own on",
            hint=f"slime-stages serve --submit --run {stage.run.root}",
        )
    say(f"warning: the engines of `serve` are of no use after {wait:g} s: {reason}; this job starts its own")
    return None


def vocabulary_size(weights: Path) -> int:
    """Of the model in a Hugging Face folder: a larger token id would end the engine."""
    config = json.loads((weights / "config.json").read_bytes())
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not size:
        raise DataError(f"{weights / 'config.json'} does not tell the vocab_size")
    return int(size)
