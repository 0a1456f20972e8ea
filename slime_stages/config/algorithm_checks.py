"""Rules between the settings of the loss, as in `checks`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slime_stages.config.model import Config
from slime_stages.config.roles import CRITIC, ROLES, role_complaints
from slime_stages.config.serving_checks import Complaint


def algorithm_complaints(config: Config) -> Iterator[Complaint]:
    yield from _ratios(config)
    yield from _mismatch(config)
    yield from _loss(config)
    yield from _estimator(config)
    yield from _roles(config)
    yield from _reference(config)
    yield from _distillation(config)
    yield from _parameters(config)


def _ratios(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.eps_clip_c is not None and algorithm.eps_clip_c <= 1:
        yield "eps_clip_c", "must be above 1: it bounds the ratio from above", None
    if algorithm.tis_clip_low > algorithm.tis_clip:
        yield "tis_clip_low", f"is above tis_clip = {algorithm.tis_clip}", None
    low, high = algorithm.rs_lower_bound, algorithm.rs_upper_bound
    if low is not None and low > (algorithm.tis_clip if high is None else high):
        yield "rs_lower_bound", "is above rs_upper_bound, so that every token would be left out", None


def _mismatch(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.use_rollout_logprobs and algorithm.use_tis:
        says = "compares trainer with engine probabilities, but use_rollout_logprobs leaves the trainer's out"
        yield "use_tis", says, "drop one of the two"
    if algorithm.tis_batch_normalize and algorithm.tis_level == "geometric":
        yield "tis_batch_normalize", "is not for tis_level = geometric, whose weights are means already", None
    if algorithm.use_rollout_logprobs and algorithm.keep_old_actor:
        says = "computes old log-probs, but use_rollout_logprobs takes those of the engine"
        yield "keep_old_actor", says, "drop one of the two"


def _loss(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.loss_type == "custom_loss" and algorithm.custom_loss_function_path is None:
        yield "loss_type", "needs a function", "--custom-loss-function-path MODULE.FUNCTION"
    if algorithm.loss_type != "custom_loss" and algorithm.custom_loss_function_path is not None:
        yield "custom_loss_function_path", "is not asked with this loss_type", "--loss-type custom_loss"
    if algorithm.loss_type == "policy_loss" and algorithm.disable_compute_advantages_and_returns:
        says = "leaves policy_loss nothing to follow"
        yield "disable_compute_advantages_and_returns", says, "--loss-type sft_loss or custom_loss"
    if algorithm.use_unbiased_kl and not algorithm.use_kl_loss:
        yield "use_unbiased_kl", "weighs a KL in the loss, and there is none", "--use-kl-loss"
    if algorithm.loss_type == "sft_loss" and (algorithm.needs_reference or algorithm.use_opd):
        yield "loss_type", "is the likelihood alone: it has no KL and no teacher", "drop kl_coef, use_kl_loss, use_opd"


def _estimator(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.advantage_estimator.startswith("reinforce") and not algorithm.normalize_advantages:
        yield "advantage_estimator", "needs advantages of mean 0 and variance 1", "--normalize-advantages"
    if algorithm.num_critic_only_steps and not algorithm.uses_critic:
        yield "num_critic_only_steps", "trains a critic, and there is none", "--advantage-estimator ppo"


def _roles(config: Config) -> Iterator[Complaint]:
    for role, given in config.optimizer.megatron_roles.items():
        if role not in ROLES:
            yield "megatron_roles", f"has the role {role}, which is none of {', '.join(ROLES)}", None
        elif role == CRITIC and not config.algorithm.uses_critic:
            yield "megatron_roles", "has settings for a critic, and there is none", "--advantage-estimator ppo"
        for says, hint in role_complaints(given):
            yield "megatron_roles", f"has for the {role}: {says}", hint


def _reference(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.kl_coef != 0 and algorithm.kl_loss_coef != 0:
        yield "kl_coef", f"counts the KL a second time beside kl_loss_coef = {algorithm.kl_loss_coef}", "set one to 0"
    if algorithm.kl_loss_coef != 0 and not algorithm.use_kl_loss:
        yield "kl_loss_coef", "weighs a KL in the loss, and there is none", "--use-kl-loss"
    if algorithm.needs_reference:
        yield from _model_complaints("ref_load", algorithm.ref_load)
    elif algorithm.ref_update_interval is not None:
        yield "ref_update_interval", "renews a reference that nothing looks at", "--use-kl-loss or --kl-coef"


def _distillation(config: Config) -> Iterator[Complaint]:
    algorithm = config.algorithm
    if algorithm.use_opd and algorithm.opd_type is None:
        yield "use_opd", "needs to know where the teacher's log-probs come from", "--opd-type sglang or megatron"
    if algorithm.opd_type is not None and not algorithm.use_opd:
        yield "opd_type", "has no effect by itself", "--use-opd"
    if algorithm.opd_teacher_load is None and algorithm.use_opd and algorithm.opd_type == "megatron":
        yield "opd_type", "needs the teacher's weights", "--opd-teacher-load FOLDER"
    elif algorithm.opd_teacher_load is not None and not (algorithm.use_opd and algorithm.opd_type == "megatron"):
        yield "opd_teacher_load", "is read only with use_opd and opd_type = megatron", "drop it"
    elif algorithm.opd_teacher_load is not None:
        yield from _model_complaints("opd_teacher_load", algorithm.opd_teacher_load)


def _model_complaints(setting: str, folder: str | None) -> Iterator[Complaint]:
    if folder is None:
        return
    known = ("config.json", "latest_checkpointed_iteration.txt", "metadata.json")
    if not any((Path(folder) / name).exists() for name in known):
        yield setting, "is neither a Hugging Face folder nor one of torch_dist checkpoints", None


def _parameters(config: Config) -> Iterator[Complaint]:
    train = config.train
    if train.only_train_params_name_list is not None and train.freeze_params_name_list is not None:
        yield "freeze_params_name_list", "says it once more: only_train_params_name_list does", "give one of the two"
    for setting in ("only_train_params_name_list", "freeze_params_name_list"):
        for pattern in getattr(train, setting) or ():
            try:
                re.compile(pattern)
            except re.error as error:
                yield setting, f"has {pattern}, which is no pattern: {error}", None
