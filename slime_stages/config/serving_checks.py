"""Rules between the settings of the engines. Each complaint is (setting, what is wrong with it, what to do)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime_stages.config.model import Config

Complaint = tuple[str, str, str | None]

RESERVED = {
    "sglang.model_path": "the published weights are served: set hf_checkpoint",
    "sglang.config": "set sglang_config in [serving]",
    "sglang.tp_size": "set rollout_num_gpus_per_engine",
    "sglang.tensor_parallel_size": "set rollout_num_gpus_per_engine",
    "sglang.random_seed": "set rollout_seed",
    "sglang.router_ip": "set sglang_router_ip in [serving]",
    "sglang.router_port": "set sglang_router_port in [serving]",
    "sglang.router_request_timeout_secs": "set sglang_router_request_timeout_secs in [serving]",
    "router.host": "the router's address is found at run time",
    "router.port": "the router's address is found at run time",
    "router.worker_urls": "set rollout_external_engine_addrs",
}
"""Options of the engine and its router that are not the user's to set, and what to do instead."""

OWN_SGLANG_OPTIONS = {
    "base_gpu_id",
    "dist_init_addr",
    "enable_memory_saver",
    "enable_return_routed_experts",
    "gpu_id_step",
    "host",
    "nccl_port",
    "nnodes",
    "node_rank",
    "port",
    "skip_server_warmup",
    "trust_remote_code",
}


def serving_complaints(config: Config) -> Iterator[Complaint]:
    yield from _modes(config)
    yield from _layout(config)
    yield from _options(config)
    yield from _speculation(config)


def _modes(config: Config) -> Iterator[Complaint]:
    serving = config.serving
    if serving.serving_mode == "external" and not serving.rollout_external_engine_addrs:
        yield "serving_mode", "needs the engines' addresses", "--rollout-external-engine-addrs HOST:PORT ..."
    if serving.serving_mode != "external" and serving.rollout_external_engine_addrs:
        yield "serving_mode", "starts engines, but rollout_external_engine_addrs names running ones", "drop one"
    for address in serving.rollout_external_engine_addrs or ():
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}", address):
            says = f"has {address}, which is not HOST:PORT"
            yield "rollout_external_engine_addrs", says, "no http://, and [..] around an IPv6 address"
    if (serving.sglang_router_ip is None) != (serving.sglang_router_port is None):
        given, missing = ("ip", "port") if serving.sglang_router_port is None else ("port", "ip")
        yield f"sglang_router_{given}", f"needs sglang_router_{missing} beside it", f"--sglang-router-{missing}"


def _layout(config: Config) -> Iterator[Complaint]:
    serving = config.serving
    size, total, engines = (
        serving.rollout_num_gpus_per_engine,
        serving.rollout_num_gpus,
        serving.rollout_num_engines,
    )
    if size > serving.num_gpus_per_node:
        says = f"is more than a node has (num_gpus_per_node = {serving.num_gpus_per_node}): engines stay on one node"
        yield "rollout_num_gpus_per_engine", says, "a smaller engine, or --num-gpus-per-node"
    if serving.sglang_config is not None:
        for name in ("prefill_num_servers", "rollout_num_engines", "rollout_external_engine_addrs"):
            if getattr(serving, name):
                yield name, "is what sglang_config says, too", "drop one of the two"
    elif total is not None and total < size:
        yield "rollout_num_gpus", f"is too few for an engine, which has {size} GPUs (rollout_num_gpus_per_engine)", None
    if total is not None and engines is not None and engines * size != total:
        says = f"times rollout_num_gpus_per_engine = {size} is {engines * size}, not rollout_num_gpus = {total}"
        yield "rollout_num_engines", says, "give only one of the two"
    prefill = serving.prefill_num_servers
    if prefill is not None and serving.serving_mode == "external":
        yield "prefill_num_servers", "is for engines that we start", "external engines say what they are themselves"
    if prefill is not None and engines is not None and prefill >= engines:
        says = f"leaves none of rollout_num_engines = {engines} to decode"
        yield "prefill_num_servers", says, f"rollout_num_engines = {prefill + 1} at least"


def _options(config: Config) -> Iterator[Complaint]:
    serving = config.serving
    for table, options in (("sglang", serving.sglang), ("router", serving.router)):
        for option in options:
            if instead := RESERVED.get(f"{table}.{option}"):
                yield f"{table}.{option}", "is not yours to set", instead
            elif table == "sglang" and option in OWN_SGLANG_OPTIONS:
                yield f"{table}.{option}", "is not yours to set", "drop it: every engine gets its own"
    parallel = next((name for name in ("dp_size", "data_parallel_size") if name in serving.sglang), None)
    if parallel and serving.sglang[parallel] not in (1, "1") and not serving.sglang.get("enable_dp_attention"):
        says = "takes GPUs of its own for each copy of the model, unless attention alone is data parallel"
        yield f"sglang.{parallel}", says, "--sglang-enable-dp-attention, or more engines instead"


def _speculation(config: Config) -> Iterator[Complaint]:
    """Where drafts branch, SGLang tells the experts of another branch than the one whose tokens it keeps.

    Of drafts by NGRAM it tells none at all where scheduling overlaps.
    """
    options = config.serving.sglang
    algorithm = str(options.get("speculative_algorithm") or "").upper()
    is_chain = algorithm != "NGRAM" and str(options.get("speculative_eagle_topk")) == "1"
    if algorithm and not is_chain and config.train.use_rollout_routing_replay:
        says = "loses the experts of drafted tokens, which use_rollout_routing_replay would train with"
        yield "sglang.speculative_algorithm", says, "--sglang-speculative-eagle-topk 1 with a draft model, or no replay"
