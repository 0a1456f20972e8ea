"""What a rollout sends its requests to, once engines are ready."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Ready engines that have the plan's weights."""

    urls: tuple[str, ...]
    """Where requests go: the router before the engines, or each engine."""

    engine_count: int
    """Engines behind them: each takes `sglang_server_concurrency` samples at a time."""

    engine_urls: tuple[str, ...] = ()
    """Addresses of the engines themselves, as far as known: an abort goes to each of them, never through a router."""

    model_urls: dict[str, str] = field(default_factory=dict)
    """Name in `sglang_config` → address of that model's router or engine; empty where there is one model."""

    weight_version: str | None = None
    """What answers must name as the version of their weights; None where it may change, or is not known."""

    is_exclusive: bool = False
    """Nobody else sends them requests: all of these may be ended at once."""
