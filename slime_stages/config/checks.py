"""Rules between settings. Each complaint is (setting, what is wrong with its value, what to do)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime_stages.config.model import Config

Complaint = tuple[str, str, str | None]

RESERVED = {
    "sglang.model_path": "the published weights are served: set hf_checkpoint",
    "sglang.config": "sglang-config files are not supported",
    "sglang.tp_size": "set rollout_num_gpus_per_engine",
    "sglang.tensor_parallel_size": "set rollout_num_gpus_per_engine",
    "sglang.random_seed": "set rollout_seed",
    "sglang.router_ip": "the router's address is found at run time",
    "sglang.router_port": "the router's address is found at run time",
    "sglang.router_request_timeout_secs": "set request_timeout_seconds",
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


def complaints(config: Config) -> Iterator[Complaint]:
    yield from _sampling(config)
    yield from _serving(config)
    yield from _evaluation(config)
    yield from _reward(config)
    yield from _batches(config)
    yield from _processes(config)
    yield from _learning_rate(config)
    yield from _algorithm(config)


def _sampling(config: Config) -> Iterator[Complaint]:
    rollout, prompt_limit = config.rollout, config.data.rollout_max_prompt_len
    if not config.data.prompt_data:
        yield "prompt_data", "names no file", "--prompt-data FILE"
    if rollout.rollout_temperature <= 0:
        says = "must be above 0: greedy samples of a prompt are all alike, and their log-probs are no policy's"
        yield "rollout_temperature", says, "for greedy evaluation set eval_temperature = 0"
    if rollout.rollout_top_k == 0 or rollout.rollout_top_k < -1:
        yield "rollout_top_k", "must be 1 or more, or -1 for all tokens", None
    if rollout.rollout_shards > rollout.rollout_batch_size:
        says = f"is more than the {rollout.rollout_batch_size} prompts of an iteration (rollout_batch_size)"
        yield "rollout_shards", says, f"rollout_shards = {rollout.rollout_batch_size} at most"
    longest = rollout.rollout_max_context_len
    if longest is not None and longest < 2:
        yield "rollout_max_context_len", "has no room for a prompt and a response", None
    elif longest is not None and prompt_limit is not None and prompt_limit >= longest:
        says = f"leaves no room for a response in rollout_max_context_len = {longest}"
        yield "rollout_max_prompt_len", says, f"rollout_max_prompt_len = {longest - 1} at most"


def _serving(config: Config) -> Iterator[Complaint]:
    serving = config.serving
    if serving.serving_mode == "external" and not serving.rollout_external_engine_addrs:
        yield "serving_mode", "needs the engines' addresses", "--rollout-external-engine-addrs HOST:PORT ..."
    if serving.serving_mode == "job" and serving.rollout_external_engine_addrs:
        yield "serving_mode", "starts engines, but rollout_external_engine_addrs names running ones", "drop one"
    for address in serving.rollout_external_engine_addrs or ():
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}", address):
            says = f"has {address}, which is not HOST:PORT"
            yield "rollout_external_engine_addrs", says, "no http://, and [..] around an IPv6 address"
    for table, options in (("sglang", serving.sglang), ("router", serving.router)):
        for option in options:
            if instead := RESERVED.get(f"{table}.{option}"):
                yield f"{table}.{option}", "is not yours to set", instead
            elif table == "sglang" and option in OWN_SGLANG_OPTIONS:
                yield f"{table}.{option}", "is not yours to set", "drop it: every engine gets its own"


def _evaluation(config: Config) -> Iterator[Complaint]:
    words = config.eval.eval_prompt_data
    if config.eval.eval_interval is not None and not words:
        yield "eval_interval", "needs something to evaluate on", "--eval-prompt-data NAME FILE"
    if words is None:
        return
    if len(words) % 2:
        yield "eval_prompt_data", f"has {len(words)} words, not pairs of a name and a file", "NAME FILE [NAME FILE ...]"
        return
    names = [name for name, _ in config.eval.datasets]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield "eval_prompt_data", f"has the name {name} {names.count(name)} times", "a name for each file"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            says = f"has the name {name}, which is no folder's"
            yield "eval_prompt_data", says, "letters, digits, `.`, `_` and `-`; is a NAME missing before a FILE?"


def _reward(config: Config) -> Iterator[Complaint]:
    if config.reward.rm_type == "remote_rm" and not config.reward.rm_url:
        yield "rm_type", "needs the address of a reward server", "--rm-url URL"
    gate = config.gate
    if gate.warn_probs_diff > gate.refuse_probs_diff:
        says = f"is above refuse_probs_diff = {gate.refuse_probs_diff}, so that it would never warn"
        yield "warn_probs_diff", says, None


def _batches(config: Config) -> Iterator[Complaint]:
    total, size, steps = config.samples_per_iteration, config.global_batch_size, config.steps_per_iteration
    rollouts = (
        f"{config.rollout.rollout_batch_size} prompts x {config.rollout.n_samples_per_prompt} samples "
        f"= {total} rollouts of an iteration"
    )
    if size > total:
        yield "global_batch_size", f"is more than the {rollouts}", f"global_batch_size = {total} at most"
    elif total % size:
        says = f"does not divide the {rollouts}: {total % size} would never be trained on"
        yield "global_batch_size", says, f"global_batch_size = {_divisor_below(total, size)} does"
    elif size * steps != total:
        says = f"times global_batch_size = {size} is {size * steps}, not the {rollouts}"
        yield "num_steps_per_rollout", says, "give only one of the two"


def _processes(config: Config) -> Iterator[Complaint]:
    train = config.train
    size, parallel = config.global_batch_size, train.tensor_model_parallel_size
    if train.process_count % parallel:
        says = f"does not divide the {train.process_count} processes (actor_num_nodes x actor_num_gpus_per_node)"
        yield "tensor_model_parallel_size", says, None
        return
    if train.use_dynamic_batch_size and train.max_tokens_per_gpu is None:
        yield "use_dynamic_batch_size", "needs to know how much fits", "--max-tokens-per-gpu INTEGER"
    at_once = train.data_parallel_size * (1 if train.use_dynamic_batch_size else train.micro_batch_size)
    if size < train.data_parallel_size:
        says = f"has not one rollout for each of {train.data_parallel_size} data-parallel processes"
        yield "global_batch_size", says, "fewer trainer processes or more samples"
    elif not train.use_dynamic_batch_size and size % at_once:
        says = (
            f"is not a multiple of {at_once}: {train.data_parallel_size} data-parallel processes "
            f"with {train.micro_batch_size} samples each at a time (micro_batch_size)"
        )
        yield "global_batch_size", says, "another size, or --use-dynamic-batch-size"


def _learning_rate(config: Config) -> Iterator[Complaint]:
    optimizer = config.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield "min_lr", f"is above lr = {optimizer.lr}", None
    if optimizer.lr_decay_style == "constant":
        return
    steps = optimizer.lr_decay_iters
    if steps is None and config.data.num_rollout is not None:
        steps = config.data.num_rollout * config.steps_per_iteration
    if steps is None:
        yield "lr_decay_style", "needs to know when the decay ends", "--num-rollout INTEGER or --lr-decay-iters INTEGER"
    elif optimizer.lr_warmup_iters >= steps:
        yield "lr_warmup_iters", f"does not end before the decay, which takes {steps} steps", None


def _algorithm(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.use_rollout_logprobs and algorithm.use_tis:
        says = "compares trainer with engine probabilities, but use_rollout_logprobs leaves the trainer's out"
        yield "use_tis", says, "drop one of the two"
    if algorithm.eps_clip_c is not None and algorithm.eps_clip_c <= 1:
        yield "eps_clip_c", "must be above 1: it bounds the ratio from above", None
    if algorithm.tis_clip_low > algorithm.tis_clip:
        yield "tis_clip_low", f"is above tis_clip = {algorithm.tis_clip}", None


def _divisor_below(total: int, size: int) -> int:
    return next(divisor for divisor in range(min(size, total), 0, -1) if total % divisor == 0)
