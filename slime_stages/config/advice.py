"""Settings that were given but do nothing, or do what few people expect: worth a line, not a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slime_stages.config.model import Config
from slime_stages.config.problems import shown


def warnings_of(config: Config, sources: Mapping[str, str]) -> Iterator[str]:
    yield from _without_effect(config, sources)
    yield from _overridden(config)
    rollout, algorithm = config.rollout, config.algorithm
    if rollout.rollout_top_p != 1.0 or rollout.rollout_top_k != -1:
        yield (
            f"rollout_top_p = {rollout.rollout_top_p}, rollout_top_k = {rollout.rollout_top_k}: samples come from a "
            "cut distribution, the trainer computes the whole one's log-probs; expect a gap between the two"
        )
    if rollout.staleness and not (algorithm.use_tis or algorithm.use_rollout_logprobs):
        yield (
            f"staleness = {rollout.staleness}: samples come from older weights than the ones that are trained, and "
            "nothing corrects for it; see use_tis and use_rollout_logprobs"
        )
    if rollout.n_samples_per_prompt == 1 and algorithm.rewards_normalization:
        yield (
            "n_samples_per_prompt = 1: a sample minus its group's mean is 0, so that nothing is learned; "
            "draw more samples, or set disable_rewards_normalization"
        )


def _overridden(config: Config) -> Iterator[str]:
    """Plug-ins see these values; the stages go on with their own."""
    flat = config.flat()
    for name, value in config.plugins.custom_config.items():
        if name in flat:
            yield f"custom_config: plug-ins see args.{name} = {shown(value)}, in place of {shown(flat[name])}"


def _without_effect(config: Config, sources: Mapping[str, str]) -> Iterator[str]:
    """Only what somebody typed is worth a word."""
    train, algorithm, reward = config.train, config.algorithm, config.reward
    idle = {
        "max_tokens_per_gpu": "use_dynamic_batch_size" if not train.use_dynamic_batch_size else None,
        "tis_clip": "use_tis" if not algorithm.use_tis else None,
        "tis_clip_low": "use_tis" if not algorithm.use_tis else None,
        "rm_url": "rm_type = remote_rm" if reward.rm_type != "remote_rm" and reward.custom_rm_path is None else None,
        "min_lr": "an lr_decay_style" if config.optimizer.lr_decay_style == "constant" else None,
        "lr_decay_iters": "an lr_decay_style" if config.optimizer.lr_decay_style == "constant" else None,
        "eval_prompt_data": "dropping eval_config, which counts in its place" if config.eval.eval_datasets else None,
        "skip_eval_before_train": "eval_interval" if config.eval.eval_interval is None else None,
    }
    for name, needed in idle.items():
        if needed is not None and _was_typed(sources[name]):
            yield f"{name} ({sources[name]}) has no effect without {needed}"
    if train.use_dynamic_batch_size and train.micro_batch_size != 1:
        yield "micro_batch_size has no effect with use_dynamic_batch_size"


def _was_typed(source: str) -> bool:
    return source != "default" and not source.startswith("derived")
