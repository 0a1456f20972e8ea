"""Engines that run already, by `--rollout-external-engine-addrs`: what they are, and a router before several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.config import Config
from slime_stages.errors import DataError, UsageError
from slime_stages.serving.encoders import is_encoder
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.layout import DEFAULT_MODEL, GENERATING, GroupLayout, ModelLayout, refuse_replay_from_pairs
from slime_stages.serving.options import router_options
from slime_stages.serving.router import Router
from slime_stages.serving.served import Served
from slime_stages.stage import say


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalEngine:
    """An engine as it describes itself."""

    handle: EngineHandle
    worker_type: str
    gpu_count: int
    bootstrap_port: int | None
    """Of one that only computes prompts."""
    info: Mapping[str, Any]


def probe(address: str) -> ExternalEngine:
    """Ask an engine what it is. RetryableError if nobody answers there."""
    handle = EngineHandle(f"http://{address.removeprefix('http://')}")
    try:
        info = handle.server_info()
    except DataError:
        if not is_encoder(handle):
            raise
        info = {"encoder_only": True}
    mode = info.get("disaggregation_mode") or "null"
    worker_type = "encoder" if info.get("encoder_only") else "regular" if mode == "null" else str(mode)
    parallel = int(info.get("tp_size") or 1) * int(info.get("pp_size") or 1)
    port = info.get("disaggregation_bootstrap_port")
    return ExternalEngine(
        handle=handle,
        worker_type=worker_type,
        gpu_count=int(info.get("num_gpus") or info.get("num_gpus_per_engine") or parallel),
        bootstrap_port=int(port) if worker_type == "prefill" and port else None,
        info=info,
    )


def probe_all(addresses: Sequence[str], config: Config) -> list[ExternalEngine]:
    """All engines. UsageError if they cannot work together; a warning for options that they do not have as wanted."""
    engines = [probe(address) for address in addresses]
    kinds = {engine.worker_type for engine in engines}
    if ("prefill" in kinds) != ("decode" in kinds) or not kinds & set(GENERATING):
        raise UsageError(
            f"the external engines are {', '.join(sorted(kinds))}: they cannot answer a request together",
            hint="name engines of both kinds in --rollout-external-engine-addrs",
        )
    if "prefill" in kinds:
        refuse_replay_from_pairs(config)
    for engine in engines:
        for name, wanted in config.serving.sglang.items():
            if name in engine.info and engine.info[name] != wanted:
                say(f"warning: {engine.handle.url} has {name} = {engine.info[name]!r}; the config says {wanted!r}")
    return engines


@contextmanager
def before_external(engines: Sequence[ExternalEngine], config: Config, log: Callable[[str], Path]) -> Iterator[Served]:
    """What to ask: the only engine, or a router before several, which lives as long as the block."""
    urls = tuple(engine.handle.url for engine in engines if engine.worker_type in GENERATING)
    working = [engine for engine in engines if engine.worker_type != "encoder"]
    with ExitStack() as stack:
        url = urls[0]
        if len(working) > 1:
            router = stack.enter_context(Router(router_options(config, _layout(working)), log=log("router-external")))
            for engine in working:
                router.add(engine.handle.url, worker_type=engine.worker_type, bootstrap_port=engine.bootstrap_port)
            url = router.url
        yield Served(urls=(url,), engine_count=len(urls), engine_urls=urls)


def _layout(engines: Sequence[ExternalEngine]) -> ModelLayout:
    groups = [
        GroupLayout(worker_type=engine.worker_type, gpus_per_engine=engine.gpu_count, first_gpus=(0,))  # type: ignore[arg-type]
        for engine in engines
    ]
    return ModelLayout(name=DEFAULT_MODEL, model_path=None, groups=tuple(groups))
