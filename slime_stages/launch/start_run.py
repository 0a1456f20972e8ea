"""Starting a run, mending one, and changing its config on request.

Everything that jobs read is copied, linked or computed into the run folder here, so that nobody reads the user's
files later. Each step finds out for itself whether it is done: a start that was killed is simply started again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from slime_stages.commit import create_file, fsync_path, replace_file, written_file
from slime_stages.config import Config, diff
from slime_stages.config.frozen import frozen_bytes, read_frozen
from slime_stages.content import content_digest
from slime_stages.digest import digest_file, sealed, unsealed
from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.plan import Plan, read_plan
from slime_stages.plugins import load_function
from slime_stages.prompts.build import build_prompt_table
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.table import write_prompt_table
from slime_stages.rundir import RunDir
from slime_stages.schema import PROMPTS
from slime_stages.stage import read_config, say
from slime_stages.weights.folders import remove_folder
from slime_stages.weights.publish import check_hf_folder, check_weights, publish_link
from slime_stages.weights.record import read_weights_record

HOOKS = {
    "custom_generate_function_path": "generate(args, sample, sampling_params)",
    "custom_rm_path": "reward(args, sample)",
}
"""Settings that name a function → how it is called."""


def start_run(run: RunDir, config: Config) -> None:
    """Make the run folder, or finish making it. UsageError if the folder holds a run with another config."""
    model = Path(config.model.hf_checkpoint)
    check_hf_folder(model)
    check_plugins(config)
    check_engine_flags(config)
    create_file(run.config_revision_path(0), frozen_bytes(config))
    mend_config(run)
    if changes := diff(read_config(run, 0), config):
        raise UsageError(
            f"{run.root} was begun with other settings ({'; '.join(map(str, changes[:4]))})",
            hint="choose another --run folder, or remove this one: it is not finished",
        )
    mend_run(run)
    run.create()


def mend_run(run: RunDir) -> None:
    """Put back what a run holds besides its iterations: its config, and the prompts and first weights made from it."""
    mend_config(run)
    config = read_config(run, 0)
    mend_weights(run, Path(config.model.hf_checkpoint))
    for split, settings in prompt_settings(config).items():
        _mend_prompts(run, config, split, settings)


def mend_config(run: RunDir) -> None:
    """`config.json` and the newest revision are the same: each is put back by the other, should it be lost or altered.

    Where both are whole and differ, a change of the config was interrupted: the revision counts, it is written first.
    """
    planned = next((plan.config_revision for plan in _plans(run)), 0)
    path = run.config_revision_path(max(current_revision(run), planned))
    if _is_config(path):
        if not run.config_path.exists() or run.config_path.read_bytes() != path.read_bytes():
            replace_file(run.config_path, path.read_bytes())
    elif _is_config(run.config_path):
        say(f"{path} was lost or altered; it is put back from {run.config_path}")
        replace_file(path, run.config_path.read_bytes())
    else:
        raise MissingInputError(
            f"{run.root} has no frozen config that is whole",
            hint=f"slime-stages init --run OTHER --config CONFIG.toml, or put {path} back from a copy",
        )


def prompt_settings(config: Config) -> dict[str, PromptSettings]:
    """What to read for training and for each evaluation set."""
    data, evaluation = config.data, config.eval
    training = PromptSettings(
        prompt_data=data.prompt_data,
        input_key=data.input_key,
        label_key=data.label_key,
        metadata_key=data.metadata_key,
        tool_key=data.tool_key,
        apply_chat_template=data.apply_chat_template,
        apply_chat_template_kwargs=data.apply_chat_template_kwargs,
        rollout_max_prompt_len=data.rollout_max_prompt_len,
    )
    settings = {"train": training}
    for name, path in evaluation.datasets:
        settings[name] = replace(
            training,
            prompt_data=(path,),
            input_key=evaluation.eval_input_key or data.input_key,
            label_key=evaluation.eval_label_key or data.label_key,
            tool_key=evaluation.eval_tool_key or data.tool_key,
            rollout_max_prompt_len=None,
        )
    return settings


def check_plugins(config: Config) -> None:
    """Load every function that a setting names, and check that it can be called as it will be."""
    flat = config.flat()
    for name, like in HOOKS.items():
        if flat[name]:
            load_function(flat[name], like=like)
    for path in config.rollout.rollout_sample_hook_path:
        load_function(path, like="hook(args, sample)")


def check_engine_flags(config: Config) -> None:
    """Refuse pass-through options that the installed SGLang or router does not have."""
    from slime_stages.serving.flags import check_router_flags, check_sglang_flags

    python = str(config.serving.serving_python or sys.executable)
    if config.serving.sglang and config.serving.serving_mode == "job":
        check_sglang_flags(dict(config.serving.sglang), python)
    if config.serving.router:
        check_router_flags(dict(config.serving.router), python)


def change_config(run: RunDir, config: Config, *, allowed: bool) -> None:
    """Make `config` the one in force from the next iteration on, if it differs and the change is asked for.

    UsageError if it differs and is not. Iterations that are planned keep the revision of their plan.
    """
    current = read_frozen(run.config_path)
    changes = diff(current, config)
    if not changes:
        return
    listed = "; ".join(map(str, changes))
    if not allowed:
        raise UsageError(
            f"the run {run.root} was frozen with other settings: {listed}",
            hint="add --change-config to use the new ones from the next iteration on, or choose another --run",
        )
    fixed = [c.name for c in changes if c.name.startswith(("data.", "model.", "eval.eval_prompt_data"))]
    if fixed:
        raise UsageError(
            f"{', '.join(fixed)} cannot change within a run: its prompts and first weights are made from them",
            hint="start another run: slime-stages init --run OTHER",
        )
    check_plugins(config)
    check_engine_flags(config)
    revision = current_revision(run) + 1
    if not create_file(run.config_revision_path(revision), frozen_bytes(config)):
        raise UsageError(f"somebody else is changing the config of {run.root}", hint="type the same command again")
    replace_file(run.config_path, frozen_bytes(config))
    say(f"config revision {revision} of {run.root}: {listed}")


def current_revision(run: RunDir) -> int:
    """The newest revision; 0 also where its file is gone."""
    found = run.config_revision_path(0).parent.glob("[0-9]*.json")
    return max((int(path.stem) for path in found), default=0)


def prompts_record(run: RunDir, split: str) -> dict[str, Any]:
    """`content`, `rows` and `dropped` of a prompt table."""
    path = run.prompts_manifest_path(split)
    try:
        return unsealed(orjson.loads(path.read_bytes()), path)
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no {path}", hint=f"slime-stages iter --run {run.root} --n 0") from error
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is not whole: {error}", hint=f"rm {path}   (it is made again)") from error


def _is_config(path: Path) -> bool:
    try:
        read_frozen(path)
    except (DataError, MissingInputError):
        return False
    return True


def _plans(run: RunDir, split: str = "train") -> Iterator[Plan]:
    """The plans that can be read, of training or of the evaluations on a set; the newest first."""
    for iteration in reversed(run.iterations()):
        with suppress(DataError, MissingInputError):
            yield read_plan(run.plan_path(iteration, split))


def mend_weights(run: RunDir, source: Path) -> None:
    """Version 0 is made of links and a record, which are put back if the model is the one that the run began with."""
    target = run.weights_path(0)
    if not target.exists():
        publish_link(source, target)
        return
    try:
        check_weights(target)
    except (DataError, MissingInputError) as error:
        known = _known_digests(target)
        if any(digest_file(source / name) != digest for name, digest in known.items() if (source / name).exists()):
            raise
        check_hf_folder(source)
        say(f"{error}; it is put back from {source}")
        remove_folder(target)
        publish_link(source, target)


def _known_digests(weights: Path) -> dict[str, str]:
    """By file, as far as the record can be read."""
    try:
        return {name: file.digest for name, file in read_weights_record(weights).files.items()}
    except (DataError, MissingInputError):
        return {}


def _mend_prompts(run: RunDir, config: Config, split: str, settings: PromptSettings) -> None:
    path, record_path = run.prompts_path(split), run.prompts_manifest_path(split)
    recorded = _recorded_content(run, split)
    if recorded is not None and path.exists() and _is_whole(path, recorded):
        return
    known = {recorded} if recorded else {plan.prompts_digest for plan in _plans(run, split)}
    built = build_prompt_table(settings, Path(config.model.hf_checkpoint))
    with written_file(path) as temporary:
        write_prompt_table(temporary, built.rows)
        content = content_digest(temporary, PROMPTS)
        if known and content not in known:
            raise DataError(
                f"{path} was lost, and {', '.join(settings.prompt_data)} has other prompts now than when the run began",
                hint="put the prompt data of that time back, or start another run",
            )
    temporary.rename(path)
    fsync_path(path.parent)
    if built.dropped_count:
        say(
            f"{split}: {built.dropped_count} of {built.read_count} prompts have more than "
            f"{settings.rollout_max_prompt_len} tokens (longest {built.longest_dropped}) and are left out"
        )
    record = {
        "content": content,
        "rows": len(built.rows),
        "read": built.read_count,
        "dropped": built.dropped_count,
        "prompt_data": list(settings.prompt_data),
    }
    replace_file(record_path, orjson.dumps(sealed(record), option=orjson.OPT_INDENT_2))


def _recorded_content(run: RunDir, split: str) -> str | None:
    try:
        return str(prompts_record(run, split)["content"])
    except (DataError, MissingInputError):
        return None


def _is_whole(path: Path, content: str) -> bool:
    try:
        return content_digest(path, PROMPTS) == content
    except DataError:
        return False
