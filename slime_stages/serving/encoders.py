"""Engines that turn images into embeddings for a model's other engines, and never load other weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slime_stages.errors import MissingInputError, SlimeStagesError, UsageError
from slime_stages.serving.engine import Engine
from slime_stages.serving.handle import EngineHandle, HttpHandle
from slime_stages.weights.record import read_weights_record

REGISTRY_PORT = "encoder_bootstrap_port"
"""Option with the port at which an engine is told of encoders."""

REGISTRY_TIMEOUT_SECONDS = 5.0


def is_encoder(server: HttpHandle) -> bool:
    """Whether a server that says nothing else of itself takes images to encode."""
    with suppress(SlimeStagesError):
        return "/encode" in server.call("GET", "/openapi.json")["paths"]
    return False


def introduce(encoder: Engine, engine: Engine) -> None:
    """Have an engine send images to an encoder: it forgets one that was away for long, or does not know its address.

    Nothing happens where `encoder` is none, or where the engine sends no images or does not answer.
    """
    port = engine.ports.get(REGISTRY_PORT)
    if encoder.options.is_encoder and port:
        with suppress(SlimeStagesError):
            registry = HttpHandle(f"http://{engine.options.host}:{port}", timeout_seconds=REGISTRY_TIMEOUT_SECONDS)
            registry.call("POST", "/register_encoder_url", {"url": encoder.url})


def refuse_stale_encoders(engine: EngineHandle, info: Mapping[str, object], weights: Path) -> None:
    """UsageError if the engine would get these weights, and embeddings from encoders that keep others.

    `info` is what the engine says of its options.
    """
    if not info.get("encoder_urls"):
        return
    served = Path(str(engine.model_info()["model_path"]))
    if not _are_the_same(served, weights):
        raise UsageError(
            f"{engine.url} has its images encoded by engines that keep the weights of {served}, not those of {weights}",
            hint="--serving-mode job, which starts all engines with each version, or no encoder groups",
        )


def _are_the_same(served: Path, weights: Path) -> bool:
    record = read_weights_record(weights)
    if record.source and Path(record.source).resolve() == served.resolve():
        return True
    try:
        return read_weights_record(served).digest == record.digest
    except MissingInputError:
        return False
