"""Engines that serve the plan's weights: warm ones where there are any, external ones, or one of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from slime_stages.errors import DataError, SlimeStagesError
from slime_stages.progress import Progress
from slime_stages.serving.engine import Engine
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.options import engine_options
from slime_stages.serving.registry import find_engines
from slime_stages.serving.served import Served
from slime_stages.stage import Stage, say
from slime_stages.weights.publish import check_weights, verify_weights
from slime_stages.weights.record import engine_label


@contextmanager
def ready_engines(stage: Stage) -> Iterator[Served]:
    """Engines that have the policy version of the plan; what was started for it ends with the block."""
    version = stage.plan.policy_version
    weights = stage.run.weights_path(version)
    check_weights(weights)
    if stage.config.serving.serving_mode == "external":
        addresses = stage.config.serving.rollout_external_engine_addrs or ()
        handles = [EngineHandle(f"http://{address.removeprefix('http://')}") for address in addresses]
        for handle in handles:
            bring_to(handle, weights, version)
        urls = tuple(handle.url for handle in handles)
        yield Served(urls=urls, engine_count=len(urls), engine_urls=urls)
    elif (warm := warm_engine(stage, weights, version)) is not None:
        yield Served(urls=(warm.url,), engine_count=1, engine_urls=(warm.url,))
    else:
        verify_weights(weights)
        log = stage.run.log_path(f"engine-{stage.plan.iteration:06d}-{stage.call.shard or 0:05d}")
        with Progress("engine", total=None) as progress:
            engine = Engine(
                weights,
                engine_label(weights, version),
                log=log,
                options=engine_options(stage.config),
                progress=lambda seconds, line: progress.update(int(seconds), log=line[-60:]),
            )
            engine.start()
        with engine_stopped_after(engine):
            yield Served(urls=(engine.url,), engine_count=1, engine_urls=(engine.url,))


@contextmanager
def engine_stopped_after(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.stop()


def warm_engine(stage: Stage, weights: Path, version: int) -> EngineHandle | None:
    """An engine that somebody keeps warm for this run, with the right weights; None if there is none that works."""
    for record in find_engines(stage.run.engines_path):
        handle = EngineHandle(record.url)
        try:
            bring_to(handle, weights, version)
        except SlimeStagesError as error:
            say(f"warning: the warm engine {record.url} is of no use: {error}")
        else:
            return handle
    return None


def bring_to(handle: EngineHandle, weights: Path, version: int) -> None:
    """Have the engine serve this version, whose files are read and compared with their digests before it loads them."""
    label = engine_label(weights, version)
    if handle.version() != label:
        verify_weights(weights)
        handle.update_weights(weights, label)


def vocabulary_size(weights: Path) -> int:
    """Of the model in a Hugging Face folder: a larger token id would end the engine."""
    config = json.loads((weights / "config.json").read_bytes())
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not size:
        raise DataError(f"{weights / 'config.json'} does not tell the vocab_size")
    return int(size)


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
