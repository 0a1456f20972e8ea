"""[serving]: the engines that generate."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from slime_stages.config.types import Command, LocalPath, Options, Section


class Serving(Section):
    title: ClassVar[str] = "the engines that generate"

    serving_mode: Literal["job", "service", "external"] = "job"
    """`job`: every rollout job starts engines in its own allocation. `service`: `slime-stages serve` keeps engines, and
    rollout jobs use them; where it is gone they start their own. `external`: engines that run already."""

    rollout_external_engine_addrs: tuple[str, ...] | None = None
    """`host:port` of each running engine; turns on `external`."""

    serving_python: Command | None = None
    """Python that runs SGLang, where it has an environment or a container of its own, such as
    `apptainer exec --nv sglang.sif python3`; this one's Python otherwise."""

    rollout_num_gpus: PositiveInt | None = None
    """GPUs for the engines of one rollout job, or of `serve`; left out, all that the job sees."""

    rollout_num_gpus_per_engine: PositiveInt = 1
    """GPUs that one engine spreads the model over (tensor times pipeline parallel)."""

    rollout_num_engines: PositiveInt | None = None
    """Engines of one rollout job, or of `serve`; left out, as many as its GPUs allow, and one without a GPU."""

    num_gpus_per_node: PositiveInt = 8
    """GPUs of one node: no engine can have more."""

    prefill_num_servers: PositiveInt | None = None
    """Engines that only compute prompts; the other GPUs' engines only decode."""

    sglang_config: LocalPath | None = None
    """YAML file that lays out the engines: several models, prefill, decode and encoder groups, options of a group."""

    sglang_server_concurrency: PositiveInt = 512
    """Samples in flight at one engine; the others wait their turn."""

    sglang_router_ip: str | None = None
    """Host of a router that runs already: engines register with it, and no router is started for the first model."""

    sglang_router_port: PositiveInt | None = None
    """Its port."""

    sglang_router_request_timeout_secs: PositiveInt = 14400
    """Longest that the router waits for an engine's answer."""

    engine_start_timeout_seconds: PositiveFloat = 900.0
    """Longest wait until an engine answers, the loading of weights included."""

    request_timeout_seconds: PositiveFloat = 3600.0
    """Longest wait for one answer of an engine."""

    service_wait_seconds: PositiveFloat = 600.0
    """Longest wait of a rollout for the engines of `serve` to be up, and for other jobs to have done with them."""

    use_fault_tolerance: bool = True
    """Start an engine again that has died, with the same weights, while the others go on. Off in slime."""

    rollout_health_check_interval: PositiveFloat = 30.0
    """Seconds between two looks at an engine; that its process has ended is seen within one second."""

    rollout_health_check_timeout: PositiveFloat = 30.0
    """Seconds until a look counts as unanswered; three such looks in a row are a dead engine."""

    rollout_health_check_first_wait: NonNegativeFloat = 0.0
    """Seconds before the first look."""

    sglang: Options = Field(default={})
    """Options of the SGLang server: every `--sglang-NAME VALUE`, or `NAME = VALUE` in this table."""

    router: Options = Field(default={})
    """Options of the router before the engines: every `--router-NAME VALUE`, or `NAME = VALUE` in this table."""
