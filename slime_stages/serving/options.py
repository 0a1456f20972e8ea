"""How the config wants engines and routers started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slime_stages.config import Config
from slime_stages.errors import UsageError
from slime_stages.serving.devices import VISIBLE
from slime_stages.serving.encoders import REGISTRY_PORT
from slime_stages.serving.installation import OWN_PYTHON
from slime_stages.serving.launch import TOKENS_ONLY_FLAGS, EngineOptions
from slime_stages.serving.layout import GroupLayout, Layout, ModelLayout
from slime_stages.serving.router import RouterOptions
from slime_stages.serving.speculation import without_own_draft

LOCAL_HOST = "127.0.0.1"

ROUTER_DEFAULTS: Mapping[str, object] = {
    "log_level": "warn",
    "balance_abs_threshold": 10,
    "balance_rel_threshold": 1.2,
}
"""slime's, where they differ from the router's own."""

ROLES: Mapping[str, Mapping[str, object]] = {
    "regular": {},
    "prefill": {"disaggregation_mode": "prefill", "load_balance_method": "follow_bootstrap_room"},
    "decode": {"disaggregation_mode": "decode"},
    "encoder": {"encoder_only": True},
}
"""What makes an engine a worker of its type."""

IMAGE_FLAGS: Mapping[str, object] = {"enable_multimodal": True}
"""SGLang lets some models that see images, such as Gemma 3, read texts alone unless it is told."""

ROLE_PORTS: Mapping[str, tuple[str, ...]] = {"prefill": ("disaggregation_bootstrap_port",)}

LOCAL_ADDRESS = "SGLANG_HOST_IP"
"""Variable with the address at which an engine receives embeddings: by default that of any network card."""

NOT_FOR_DECODING = ("enable_hierarchical_cache",)
"""An engine that only decodes gets its prefixes from another one."""


def answers_are_tokens(config: Config) -> bool:
    """Whether the engine needs no tokenizer: nobody asks it for texts, and none ends a response."""
    sets = [dataset for _, dataset in config.eval.datasets]
    custom = [config.rollout.custom_generate_function_path, config.plugins.rollout_function_path]
    custom += [config.eval.eval_function_path, *(dataset.custom_generate_function_path for dataset in sets)]
    texts = [config.rollout.rollout_stop, *(dataset.stop for dataset in sets)]
    return not any(custom) and not any(texts) and not shows_images(config)


def shows_images(config: Config) -> bool:
    sets = [dataset for _, dataset in config.eval.datasets]
    return any([config.data.multimodal_keys, *(dataset.multimodal_keys for dataset in sets)])


def serving_python(config: Config) -> str:
    return config.serving.serving_python or OWN_PYTHON


def engine_options(
    config: Config,
    layout: Layout,
    model: ModelLayout,
    group: GroupLayout,
    number: int,
    *,
    host: str = LOCAL_HOST,
    overrides: Mapping[str, object] | None = None,
    encoder_urls: Sequence[str] = (),
) -> EngineOptions:
    """The options of engine `number` of a group; `overrides` are those of the group that SGLang knows."""
    serving = config.serving
    own = dict(group.overrides if overrides is None else overrides)
    is_policy = model.model_path is None and group.worker_type != "encoder"
    tokens_only = answers_are_tokens(config) and is_policy
    sees = IMAGE_FLAGS if shows_images(config) and model.model_path is None else {}
    given = {**(TOKENS_ONLY_FLAGS if tokens_only else {}), **sees, **serving.sglang}
    flags = {"served_model_name": model.name, **without_own_draft(given, config.model.hf_checkpoint)}
    if group.worker_type == "decode":
        flags = {name: value for name, value in flags.items() if name not in NOT_FOR_DECODING}
    ports = ROLE_PORTS.get(group.worker_type, ())
    tells_experts = is_policy and config.train.use_rollout_routing_replay
    more: dict[str, object] = {"enable_return_routed_experts": True} if tells_experts else {}
    if sends_images := bool(encoder_urls) and group.worker_type in ("regular", "prefill"):
        more |= {"language_only": True, "encoder_urls": list(encoder_urls)}
        ports = (*ports, REGISTRY_PORT)
    return EngineOptions(
        python=serving_python(config),
        host=host,
        seed=config.train.seed + group.first_gpus[number],
        engines_beside=sum(len(one.first_gpus) for each in layout.models for one in each.groups) - 1,
        flags=flags,
        layout={**_parallel_sizes(group, {**flags, **own}), **ROLES[group.worker_type], **more, **own},
        port_flags=tuple(name for name in ports if name not in own),
        environment=_environment(layout.devices_of(group, number), host if sends_images else None),
        start_timeout_seconds=serving.engine_start_timeout_seconds,
    )


def router_options(config: Config, model: ModelLayout, *, host: str = LOCAL_HOST) -> RouterOptions:
    """The options of the router before a model's engines."""
    serving = config.serving
    return RouterOptions(
        python=serving_python(config),
        host=host,
        flags={**ROUTER_DEFAULTS, **serving.router},
        request_timeout_seconds=serving.sglang_router_request_timeout_secs,
        is_disaggregated=model.is_disaggregated,
    )


def _environment(devices: Sequence[str], address: str | None) -> dict[str, str]:
    """Variables for an engine: its GPUs, and where it receives embeddings unless the user says so himself."""
    seen = {VISIBLE: ",".join(devices)} if devices else {}
    return seen | ({LOCAL_ADDRESS: os.environ.get(LOCAL_ADDRESS, address)} if address else {})


def _parallel_sizes(group: GroupLayout, flags: Mapping[str, object]) -> dict[str, object]:
    """`tp_size` for the GPUs of an engine that pipeline stages leave."""
    stages = int(str(flags.get("pp_size") or flags.get("pipeline_parallel_size") or 1))
    if group.gpus_per_engine % stages:
        raise UsageError(
            f"an engine has {group.gpus_per_engine} GPUs, which {stages} pipeline stages do not divide",
            hint="--sglang-pp-size, or --rollout-num-gpus-per-engine",
        )
    size = group.gpus_per_engine // stages
    return {"tp_size": size} if size > 1 else {}


def own_host() -> str:
    """Where other nodes reach this one, within a job; elsewhere this machine keeps its engines to itself.

    `SLIME_HOST_IP` is believed before all.
    """
    told = os.environ.get("SLIME_HOST_IP")
    if told:
        return told
    return _address() if os.environ.get("SLURM_JOB_ID") else LOCAL_HOST


def _address() -> str:
    """Of the interface that leads out. A datagram socket is only pointed at an address: nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOCAL_HOST
