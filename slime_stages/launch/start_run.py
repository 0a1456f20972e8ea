"""Starting a run, mending one, and changing its config on request.

Everything that jobs read is copied, linked or computed into the run folder here, so that nobody reads the user's
files later. Each step finds out for itself whether it is done: a start that was killed is simply started again.
"""

from __future__ import annotations

from pathlib import Path

from slime_stages.config import Config, diff
from slime_stages.config.frozen import frozen_bytes, read_frozen
from slime_stages.config.hooks import check_hooks
from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.launch.prompt_tables import mend_prompts, plans_of, reads_other_prompts, with_rollout_count
from slime_stages.run.commit import create_file, replace_file
from slime_stages.run.digest import digest_file
from slime_stages.run.rundir import RunDir
from slime_stages.stage import read_config, say
from slime_stages.weights.folders import remove_folder
from slime_stages.weights.publish import check_hf_folder, check_weights, publish_link
from slime_stages.weights.record import read_weights_record

MAY_CHANGE = ("data.num_rollout", "data.num_epoch")
"""Settings among those of the prompts that the prompt table does not depend on."""
OF_CHECKPOINTS = ("train.mtp_num_layers", "train.enable_mtp_training")
"""Settings that say which layers a checkpoint holds, and of which its optimizer has a state."""


def start_run(run: RunDir, config: Config) -> None:
    """Make the run folder, or finish making it. UsageError if the folder holds a run with another config."""
    model = Path(config.model.hf_checkpoint)
    check_hf_folder(model)
    check_plugins(config)
    check_engine_flags(config)
    try:
        check_trainer(config)
    except DataError as error:
        say(f"warning: {error.message}; it can be rolled out, scored and evaluated, not trained")
    config = with_rollout_count(run, config)
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
    mend_prompts(run, config)


def mend_config(run: RunDir) -> None:
    """`config.json` and the newest revision are the same: each is put back by the other, should it be lost or altered.

    Where both are whole and differ, a change of the config was interrupted: the revision counts, it is written first.
    """
    planned = next((plan.config_revision for plan in plans_of(run)), 0)
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


def check_plugins(config: Config) -> None:
    """Load every function that a setting names, and check that it can be called as it will be; reward types, too."""
    from slime_stages.rewards.readiness import check_reward_types

    for sentence in (*check_hooks(config), *check_reward_types(config)):
        say(f"warning: {sentence}")


def check_plugins_of(run: RunDir) -> None:
    """The same for the config in force: the files of plug-ins may have changed since it was frozen."""
    check_plugins(read_config(run, current_revision(run)))


def check_engine_flags(config: Config) -> None:
    """Refuse pass-through options that the installed SGLang or router does not have, and a layout that is none."""
    from slime_stages.serving.flags import check_router_flags, check_sglang_flags
    from slime_stages.serving.layout import layout_of
    from slime_stages.serving.options import serving_python

    python = serving_python(config)
    if config.serving.serving_mode != "external":
        layout_of(config, ())
    if config.serving.sglang and config.serving.serving_mode != "external":
        check_sglang_flags(dict(config.serving.sglang), python)
    if config.serving.router:
        check_router_flags(dict(config.serving.router), python)


def check_trainer(config: Config) -> None:
    """Refuse what training could not be done with.

    DataError for a model that the trainer does not know; UsageError for settings that do not split it, and for fields
    that Megatron-Core does not have.
    """
    from slime_stages.config.megatron_fields import check_megatron_fields
    from slime_stages.weights.mapping.layout import read_huggingface_config
    from slime_stages.weights.mapping.limits import refuse_unsupported

    if config.train.megatron:
        check_megatron_fields(config.train.megatron)
    refuse_unsupported(read_huggingface_config(Path(config.model.hf_checkpoint)), config.train)


def change_config(run: RunDir, config: Config, *, allowed: bool) -> None:
    """Make `config` the one in force from the next iteration on, if it differs and the change is asked for.

    UsageError if it differs and is not. Iterations that are planned keep the revision of their plan.
    """
    current, config = read_frozen(run.config_path), with_rollout_count(run, config)
    changes = diff(current, config)
    if not changes:
        return
    listed = "; ".join(map(str, changes))
    if not allowed:
        raise UsageError(
            f"the run {run.root} was frozen with other settings: {listed}",
            hint="add --change-config to use the new ones from the next iteration on, or choose another --run",
        )
    names = [change.name for change in changes if change.name not in MAY_CHANGE]
    fixed = [name for name in names if name.startswith(("data.", "model.")) or name in OF_CHECKPOINTS]
    if not fixed and reads_other_prompts(current, config):
        fixed = [name for name in names if name.startswith("eval.")]
    if fixed:
        raise UsageError(
            f"{', '.join(fixed)} cannot change within a run: its prompts, weights or checkpoints are made from them",
            hint="start another run: slime-stages init --run OTHER",
        )
    check_plugins(config)
    check_engine_flags(config)
    check_trainer(config)
    revision = current_revision(run) + 1
    if not create_file(run.config_revision_path(revision), frozen_bytes(config)):
        raise UsageError(f"somebody else is changing the config of {run.root}", hint="type the same command again")
    replace_file(run.config_path, frozen_bytes(config))
    say(f"config revision {revision} of {run.root}: {listed}")


def current_revision(run: RunDir) -> int:
    """The newest revision; 0 also where its file is gone."""
    found = run.config_revision_path(0).parent.glob("[0-9]*.json")
    return max((int(path.stem) for path in found), default=0)


def _is_config(path: Path) -> bool:
    try:
        read_frozen(path)
    except (DataError, MissingInputError):
        return False
    return True


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
