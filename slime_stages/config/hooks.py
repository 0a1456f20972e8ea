"""Every setting that names a function of the user's: how it is called, and when. One table for checks and pages.

Signatures are slime's. An argument written `name=value` is given by its name, as is every one behind a `*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slime_stages.config.model import Config
from slime_stages.errors import UsageError
from slime_stages.plugins import load_class, load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A place where a function of the user's is called."""

    setting: str
    call: str
    when: str
    methods: tuple[str, ...] = ()
    """Of a class: how its instances are called."""
    is_trainers: bool = False
    """Called by the trainer only, whose environment may be another one than this."""


def _trainers(setting: str, call: str, when: str) -> Hook:
    return Hook(setting=setting, call=call, when=when, is_trainers=True)


HOOKS = (
    Hook(
        setting="rollout_function_path",
        call="rollout(args, rollout_id, data_source, evaluation=False)",
        when="once a rollout shard, in place of generation",
    ),
    Hook(
        setting="eval_function_path",
        call="evaluate(args, rollout_id, data_source, evaluation=True)",
        when="once an evaluation shard, in place of generation",
    ),
    Hook(
        setting="custom_generate_function_path",
        call="generate(args, sample, sampling_params, [evaluation])",
        when="for every sample, in place of one call to the engine",
    ),
    Hook(setting="custom_rm_path", call="reward(args, sample)", when="for every finished sample"),
    Hook(setting="eval_custom_rm_path", call="reward(args, sample)", when="for every finished sample of evaluation"),
    Hook(
        setting="rollout_sample_hook_path",
        call="hook(args, sample, [rollout_id], [evaluation])",
        when="for every sample, before its reward",
    ),
    Hook(
        setting="dynamic_sampling_filter_path",
        call="keep(args, samples)",
        when="for every finished and scored group",
    ),
    Hook(
        setting="buffer_filter_path",
        call="choose(args, rollout_id, buffer, num_samples)",
        when="when a shard begins and groups were handed over to it",
    ),
    Hook(
        setting="rollout_sample_filter_path", call="mark(args, groups)", when="once a shard, with the groups it keeps"
    ),
    Hook(
        setting="rollout_all_samples_process_path",
        call="process(args, all_groups, get_samples)",
        when="once a shard, with all finished groups",
    ),
    Hook(
        setting="data_source_path",
        call="DataSource(args)",
        when="once an iteration, in place of the order of the prompt table",
        methods=(
            "get_samples(self, num_samples)",
            "add_samples(self, samples)",
            "save(self, rollout_id)",
            "load(self, rollout_id)",
            "__len__(self)",
        ),
    ),
    Hook(
        setting="custom_rollout_log_function_path",
        call="log(rollout_id, args, samples, extra_metrics, rollout_time)",
        when="once an iteration, when all its samples are scored",
    ),
    Hook(
        setting="custom_eval_rollout_log_function_path",
        call="log(rollout_id, args, data, extra_metrics)",
        when="once an evaluation of a data set, when all its samples are scored",
    ),
    _trainers("custom_reward_post_process_path", "post_process(args, samples)", "before advantages"),
    _trainers("custom_convert_samples_to_train_data_path", "convert(args, samples)", "before a batch is made"),
    _trainers(
        "rollout_data_postprocess_path",
        "post_process(args, rollout_id, rollout_data)",
        "before the first optimizer step",
    ),
    _trainers("custom_advantage_function_path", "advantages(args, rollout_data)", "in place of the estimator"),
    _trainers("custom_loss_function_path", "loss(args, batch, logits, sum_of_sample_mean)", "for every micro-batch"),
    _trainers(
        "custom_tis_function_path",
        "tis(*, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths)",
        "for every micro-batch",
    ),
    _trainers(
        "custom_pg_loss_reducer_function_path",
        "reducer(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)",
        "for every micro-batch",
    ),
    _trainers("custom_megatron_init_path", "init(args)", "once a trainer process"),
    _trainers(
        "custom_megatron_before_log_prob_hook_path",
        "before(args, model, store_prefix)",
        "before log-probs are computed",
    ),
    _trainers(
        "custom_megatron_before_train_step_hook_path",
        "before(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)",
        "before every optimizer step",
    ),
    _trainers("custom_model_provider_path", "provide(pre_process, post_process)", "once a trainer process"),
    _trainers(
        "custom_update_weight_post_write_path",
        "written(args, version_dir, rollout_engines)",
        "when weights are published",
    ),
)
"""In the order of the page; those whose setting does not exist yet are passed over."""

BY_SETTING = {hook.setting: hook for hook in HOOKS}

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"

BUILT_IN = {
    FULLY_ASYNC: None,
    "slime.rollout.sft_rollout.generate_rollout": "slime_stages.generation.sft.generate_rollout",
    "slime.rollout.sglang_rollout.generate_rollout": None,
}
"""slime's own rollout functions, by their names there; None: what the rollout stage does without a function."""


def built_in(path: str | None) -> str | None:
    """The path of what runs for a function that the config names."""
    return None if path is None else BUILT_IN.get(path, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedHook:
    """A function that a config names."""

    hook: Hook
    path: str
    source: str
    """Where the config names it: a setting, or an evaluation set and its key."""


def named_hooks(config: Config) -> Iterator[NamedHook]:
    flat = config.flat()
    for hook in HOOKS:
        value = flat.get(hook.setting)
        for path in (value,) if isinstance(value, str) else value or ():
            if (ours := built_in(path)) is not None:
                yield NamedHook(hook=hook, path=ours, source=hook.setting)
    for name, dataset in config.eval.datasets:
        for setting in ("custom_generate_function_path", "custom_rm_path"):
            if path := getattr(dataset, setting):
                yield NamedHook(hook=BY_SETTING[setting], path=path, source=f"{setting} of the data set {name}")


def check_hooks(config: Config) -> list[str]:
    """Load every function that the config names, and check that it can be called as it will be.

    UsageError for the first that cannot. Returns a sentence for each that lacks a package here.
    """
    unchecked = []
    for named in named_hooks(config):
        try:
            load_hook(named.hook, named.path)
        except UsageError as error:
            if named.hook.is_trainers and _lacks_package(error, named.path):
                unchecked.append(f"{named.source}: {error.message}; it is not checked before the train stage")
            else:
                raise UsageError(f"{named.source}: {error.message}", hint=error.hint) from error
    return unchecked


def load_hook(hook: Hook, path: str) -> Callable[..., Any]:
    if hook.methods:
        return load_class(path, like=hook.call, methods=hook.methods)
    return load_function(path, like=hook.call)


def generation_function(config: Config, split: str) -> Callable[..., Any] | None:
    """The function that makes the shards of training, or of an evaluation set, in place of generation."""
    setting, path = "rollout_function_path", config.plugins.rollout_function_path
    if split != "train":
        setting, path = "eval_function_path", config.eval.eval_function_path or path
    path = built_in(path)
    return None if path is None else load_hook(BY_SETTING[setting], path)


def uses_engines(config: Config, split: str) -> bool:
    """Whether generation asks engines: a function has an attribute `uses_engines`, False, if it does not."""
    function = generation_function(config, split)
    return function is None or bool(getattr(function, "uses_engines", True))


def _lacks_package(error: UsageError, path: str) -> bool:
    """Whether the module is there, but something that it imports is not."""
    cause = error.__cause__
    own = path.replace(":", ".").split(".")[0]
    return isinstance(cause, ModuleNotFoundError) and (cause.name or own).split(".")[0] != own
