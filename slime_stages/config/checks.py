"""Rules between settings. Each complaint is (setting, what is wrong with its value, what to do)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime_stages.config.algorithm_checks import algorithm_complaints
from slime_stages.config.hooks import built_in
from slime_stages.config.model import Config
from slime_stages.config.parallel_checks import parallel_complaints
from slime_stages.config.serving_checks import Complaint, serving_complaints

REMOTE_TYPES = ("remote_rm", "boxed_remote_rm")


def complaints(config: Config) -> Iterator[Complaint]:
    yield from _prompts(config)
    yield from _sampling(config)
    yield from _surplus(config)
    yield from _data_source(config)
    yield from serving_complaints(config)
    yield from _evaluation(config)
    yield from _reward(config)
    yield from _batches(config)
    yield from _processes(config)
    yield from _learning_rate(config)
    yield from algorithm_complaints(config)


def _prompts(config: Config) -> Iterator[Complaint]:
    data, plugins = config.data, config.plugins
    asks = config.rollout.custom_generate_function_path or plugins.rollout_function_path or plugins.data_source_path
    if data.disable_rollout_global_dataset and data.prompt_data:
        yield "disable_rollout_global_dataset", "says that there is no prompt data, but there is", "drop prompt_data"
    elif data.disable_rollout_global_dataset and asks is None:
        says = "leaves nothing to ask"
        yield "disable_rollout_global_dataset", says, "--custom-generate-function-path MODULE.FUNCTION, which asks"
    elif not data.disable_rollout_global_dataset and not data.prompt_data:
        yield "prompt_data", "names no file", "--prompt-data FILE"
    for kind in data.multimodal_keys or ():
        if kind != "image":
            yield "multimodal_keys", f"has {kind}, which is not supported", '{"image": COLUMN}'


def _sampling(config: Config) -> Iterator[Complaint]:
    rollout, prompt_limit = config.rollout, config.data.rollout_max_prompt_len
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


def _surplus(config: Config) -> Iterator[Complaint]:
    rollout = config.rollout
    at_a_time = rollout.over_sampling_batch_size
    if at_a_time is not None and at_a_time < rollout.rollout_batch_size:
        says = f"is below the {rollout.rollout_batch_size} prompts of an iteration (rollout_batch_size)"
        yield "over_sampling_batch_size", says, f"over_sampling_batch_size = {rollout.rollout_batch_size} at least"
    if rollout.mask_offpolicy_in_partial_rollout and not rollout.partial_rollout:
        yield "mask_offpolicy_in_partial_rollout", "masks tokens that only partial_rollout keeps", "--partial-rollout"
    if rollout.rollout_streaming and built_in(config.plugins.rollout_function_path) is not None:
        says = "keeps groups in flight, which a function in place of generation has for itself"
        yield "rollout_streaming", says, "drop rollout_function_path, or rollout_streaming"
    if rollout.buffer_filter_path is not None and not rollout.carries:
        says = "chooses among groups that were handed over, and nothing hands any over"
        yield "buffer_filter_path", says, "--over-sampling-batch-size, --partial-rollout or a dynamic sampling filter"


def _data_source(config: Config) -> Iterator[Complaint]:
    """Its state is handed from one iteration to the next, so that there is one shard after the other."""
    if config.plugins.data_source_path is None:
        return
    rollout, says = config.rollout, "has a state that goes through its prompts in turn, which does not go with"
    if rollout.rollout_shards > 1:
        yield "data_source_path", f"{says} rollout_shards = {rollout.rollout_shards}", "rollout_shards = 1"
    if rollout.staleness:
        yield "data_source_path", f"{says} staleness = {rollout.staleness}", "staleness = 0"
    if rollout.carries:
        yield "data_source_path", f"{says} groups that are left over", "drop over-sampling, filters and deadlines"


def _evaluation(config: Config) -> Iterator[Complaint]:
    words, has_file = config.eval.eval_prompt_data, bool(config.eval.eval_datasets)
    if config.eval.eval_interval is not None and not words and not has_file:
        yield "eval_interval", "needs something to evaluate on", "--eval-prompt-data NAME FILE"
    if words is not None and len(words) % 2 and not has_file:
        yield "eval_prompt_data", f"has {len(words)} words, not pairs of a name and a file", "NAME FILE [NAME FILE ...]"
        return
    for name, dataset in config.eval.datasets:
        if dataset.rm_type in REMOTE_TYPES and not config.reward.rm_url:
            says = f"scores {name} by {dataset.rm_type}, which needs the address of a reward server"
            yield "eval_datasets", says, "--rm-url URL"
    names = [name for name, _ in config.eval.datasets]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield "eval_prompt_data", f"has the name {name} {names.count(name)} times", "a name for each file"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == "train":
            says = f"has the name {name}, which is " + ("training's" if name == "train" else "no folder's")
            hint = "letters, digits, `.`, `_` and `-`; is a NAME missing before a FILE?"
            yield ("eval_datasets" if has_file else "eval_prompt_data"), says, hint


def _reward(config: Config) -> Iterator[Complaint]:
    reward = config.reward
    if reward.rm_type in REMOTE_TYPES and not reward.rm_url:
        yield "rm_type", "needs the address of a reward server", "--rm-url URL"
    if reward.code_timeout is not None and reward.code_timeout >= reward.reward_timeout:
        says = f"does not fit into reward_timeout = {reward.reward_timeout:g} s, within which its sample is scored"
        yield "code_timeout", says, f"code_timeout = {reward.reward_timeout / 2:g}, or a longer --reward-timeout"
    if reward.reward_shard_timeout is not None and reward.reward_timeout >= reward.reward_shard_timeout:
        says = f"does not fit into reward_shard_timeout = {reward.reward_shard_timeout:g} s, which is for all samples"
        yield "reward_timeout", says, f"reward_timeout = {reward.reward_shard_timeout / 2:g}, or more for the shard"
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
    size = config.global_batch_size
    yield from parallel_complaints(train)
    if train.use_routing_replay and not (train.use_rollout_routing_replay or config.algorithm.computes_advantages):
        says = "replays the experts of the pass for old log-probs, which this loss does without"
        yield "use_routing_replay", says, "drop it, or --use-rollout-routing-replay"
    if train.process_count % train.model_parallel_size:
        return
    if train.use_dynamic_batch_size and train.max_tokens_per_gpu is None:
        yield "use_dynamic_batch_size", "needs to know how much fits", "--max-tokens-per-gpu INTEGER"
    if train.balance_by_flops and not train.use_dynamic_batch_size:
        says = "fills forward passes by computation, not by number"
        yield "balance_by_flops", says, "--use-dynamic-batch-size --max-tokens-per-gpu INTEGER"
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
    steps = config.decay_steps
    if steps is None and config.data.num_epoch is None:
        yield "lr_decay_style", "needs to know when the decay ends", "--num-rollout INTEGER or --lr-decay-iters INTEGER"
    elif steps is not None and optimizer.lr_warmup_iters >= steps:
        yield "lr_warmup_iters", f"does not end before the decay, which takes {steps} steps", None


def _divisor_below(total: int, size: int) -> int:
    return next(divisor for divisor in range(min(size, total), 0, -1) if total % divisor == 0)
