"""[serving]: the engines that generate."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from slime_stages.config.types import LocalPath, Options, Section


class Serving(Section):
    title: ClassVar[str] = "the engines that generate"

    serving_mode: Literal["job", "external"] = "job"
    """`job`: every rollout job starts engines in its own allocation. `external`: engines that run already."""

    rollout_external_engine_addrs: tuple[str, ...] | None = None
    """`host:port` of each running engine; turns on `external`."""

    serving_python: LocalPath | None = None
    """Python that runs SGLang, where it has an environment of its own; this one's Python otherwise."""

    rollout_num_gpus_per_engine: PositiveInt = 1
    """GPUs that one engine spreads the model over (tensor parallel)."""

    sglang_server_concurrency: PositiveInt = 512
    """Samples in flight at one engine; the others wait their turn."""

    engine_start_timeout_seconds: PositiveFloat = 900.0
    """Longest wait until an engine answers, the loading of weights included."""

    request_timeout_seconds: PositiveFloat = 3600.0
    """Longest wait for one answer of an engine."""

    sglang: Options = Field(default={})
    """Options of the SGLang server: every `--sglang-NAME VALUE`, or `NAME = VALUE` in this table."""

    router: Options = Field(default={})
    """Options of the router before the engines: every `--router-NAME VALUE`, or `NAME = VALUE` in this table."""
