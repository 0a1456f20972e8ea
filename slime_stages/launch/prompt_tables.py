"""The prompt tables of a run: what they are made of, making them, and how many iterations their rows are enough for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from slime_stages.config import Config
from slime_stages.config.checks import complaints
from slime_stages.config.eval_dataset import EvalDataset, resolved_datasets
from slime_stages.config.frozen import read_frozen
from slime_stages.data.content import content_digest
from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.build import PromptCounts, build_prompts
from slime_stages.prompts.media import IMAGE
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.source import SCHEMAS, VERL_IMAGES
from slime_stages.prompts.table import table_schema, write_prompt_table
from slime_stages.run.commit import fsync_path, replace_file, written_file
from slime_stages.run.digest import sealed, unsealed
from slime_stages.run.plan import Plan, read_plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import say

OWN_KEYS = (
    "input_key",
    "label_key",
    "tool_key",
    "metadata_key",
    "multimodal_keys",
    "apply_chat_template",
    "apply_chat_template_kwargs",
)
"""What an evaluation set says of its prompts besides where they are and how long they may be."""


def prompt_settings(config: Config) -> dict[str, PromptSettings]:
    """What to read for training and for each evaluation set."""
    data = config.data
    training = PromptSettings(
        prompt_data=data.prompt_data,
        disable_rollout_global_dataset=data.disable_rollout_global_dataset,
        input_key=data.input_key,
        label_key=data.label_key,
        metadata_key=data.metadata_key,
        tool_key=data.tool_key,
        multimodal_keys=data.multimodal_keys or {},
        apply_chat_template=data.apply_chat_template,
        apply_chat_template_if_recognised=config.rollout.custom_generate_function_path is None,
        apply_chat_template_kwargs=data.apply_chat_template_kwargs,
        rollout_max_prompt_len=data.rollout_max_prompt_len,
    )
    sets = resolved_datasets(config).items()
    return {"train": training} | {name: _eval_prompt_settings(training, dataset) for name, dataset in sets}


def _eval_prompt_settings(training: PromptSettings, dataset: EvalDataset) -> PromptSettings:
    own = {field: getattr(dataset, field) for field in OWN_KEYS}
    return replace(
        training,
        prompt_data=(dataset.path,),
        disable_rollout_global_dataset=False,
        apply_chat_template_if_recognised=dataset.custom_generate_function_path is None,
        rollout_max_prompt_len=dataset.max_prompt_len,
        **{field: value for field, value in own.items() if value is not None},
    )


def reads_other_prompts(old: Config, new: Config) -> bool:
    """Whether the configs make different tables. Another generate function leaves them as they are."""
    before, after = (
        {split: replace(one, apply_chat_template_if_recognised=False) for split, one in prompt_settings(config).items()}
        for config in (old, new)
    )
    return before != after


def prompts_record(run: RunDir, split: str) -> dict[str, Any]:
    """`content`, `rows` and `dropped` of a prompt table."""
    path = run.prompts_manifest_path(split)
    try:
        return unsealed(orjson.loads(path.read_bytes()), path)
    except FileNotFoundError as error:
        raise MissingInputError(f"there is no {path}", hint=f"slime-stages iter --run {run.root} --n 0") from error
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is not whole: {error}", hint=f"rm {path}   (it is made again)") from error


def mend_prompts(run: RunDir, config: Config) -> None:
    """Make the tables that are missing or not whole. DataError where other prompts would come out than plans know."""
    for split, settings in prompt_settings(config).items():
        path, recorded = run.prompts_path(split), _recorded_content(run, split)
        if recorded is None or not path.exists() or not _is_whole(path, recorded):
            known = {recorded} if recorded else {plan.prompts_digest for plan in plans_of(run, split)}
            _make_table(run, config, split, settings, known)


def with_rollout_count(run: RunDir, config: Config) -> Config:
    """`num_rollout` filled in where `num_epoch` stands for it: passes over the prompts, in whole batches.

    The prompts are counted by making their table, which is done before a new run's config is frozen.
    """
    data, batch = config.data, config.rollout.rollout_batch_size
    if data.num_epoch is None or data.num_rollout is not None:
        return config
    rows = _training_rows(run, config)
    if rows < batch:
        raise UsageError(
            f"num_epoch = {data.num_epoch}: {rows} prompts are no whole iteration of {batch} (rollout_batch_size)",
            hint=f"rollout_batch_size = {rows} at most, or num_rollout",
        )
    counted = data.model_copy(update={"num_rollout": rows // batch * data.num_epoch})
    filled = config.model_copy(update={"data": counted})
    for name, says, hint in complaints(filled):
        raise UsageError(f"{name} {says}, with num_rollout = {counted.num_rollout} from num_epoch", hint=hint)
    return filled


def _training_rows(run: RunDir, config: Config) -> int:
    frozen = run.config_revision_path(0)
    if frozen.exists():
        if _recorded_content(run, "train") is None:
            mend_prompts(run, read_frozen(frozen))
    else:  # what lies there was made with settings that nobody has kept
        _make_table(run, config, "train", prompt_settings(config)["train"], set())
    return int(prompts_record(run, "train")["rows"])


def plans_of(run: RunDir, split: str = "train") -> Iterator[Plan]:
    """The plans that can be read, of training or of the evaluations on a set; the newest first."""
    for iteration in reversed(run.iterations()):
        with suppress(DataError, MissingInputError):
            yield read_plan(run.plan_path(iteration, split))


def _make_table(run: RunDir, config: Config, split: str, settings: PromptSettings, known: set[str]) -> None:
    path, counts = run.prompts_path(split), PromptCounts()
    with written_file(path) as temporary:
        rows = build_prompts(settings, Path(config.model.hf_checkpoint), counts)
        write_prompt_table(temporary, rows, media=bool(settings.multimodal_keys))
        content = content_digest(temporary, table_schema(temporary))
        if known and content not in known:
            raise DataError(
                f"{path} was lost, and {', '.join(settings.prompt_data)} has other prompts now than when the run began",
                hint="put the prompt data of that time back, or start another run",
            )
    temporary.rename(path)
    fsync_path(path.parent)
    _tell(split, settings, counts)
    record = {
        "content": content,
        "rows": counts.kept,
        "read": counts.read,
        "dropped": counts.dropped,
        "prompt_data": list(settings.prompt_data),
    }
    replace_file(run.prompts_manifest_path(split), orjson.dumps(sealed(record), option=orjson.OPT_INDENT_2))


def _tell(split: str, settings: PromptSettings, counts: PromptCounts) -> None:
    for schema, count in counts.schemas.items():
        say(f"{split}: {count} of {counts.read} prompts are in {schema}'s schema: {SCHEMAS[schema]}")
    if counts.images_unread:
        keys = orjson.dumps({IMAGE: VERL_IMAGES}).decode()
        say(
            f"warning: {split}: {counts.images_unread} of {counts.read} prompts have images that the model is not "
            f"shown; --multimodal-keys '{keys}' shows them"
        )
    if counts.dropped:
        say(
            f"{split}: {counts.dropped} of {counts.read} prompts have more than "
            f"{settings.rollout_max_prompt_len} tokens (longest {counts.longest_dropped}) and are left out"
        )
    if counts.unmeasured and settings.rollout_max_prompt_len is not None:
        say(f"{split}: {counts.unmeasured} prompts are messages without a chat template and have no length to check")


def _recorded_content(run: RunDir, split: str) -> str | None:
    try:
        return str(prompts_record(run, split)["content"])
    except (DataError, MissingInputError):
        return None


def _is_whole(path: Path, content: str) -> bool:
    try:
        return content_digest(path, table_schema(path)) == content
    except DataError:
        return False
