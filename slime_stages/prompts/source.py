"""What a row of prompt data says: prompt, label, metadata and tools, under slime's keys or in a schema that we know."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime_stages.errors import DataError
from slime_stages.prompts.files import SourceRow
from slime_stages.prompts.settings import USUAL_INPUT_KEY, PromptSettings

Messages = list[dict[str, Any]]

USUAL_KEYS = {
    "input_key": ("prompt", "messages", "question", "problem", "input", "instruction", "query"),
    "label_key": ("label", "answer", "solution", "ground_truth", "target", "reference"),
}
SCHEMAS = {
    "verl": "`prompt`, `reward_model.ground_truth` as label, `data_source` and `extra_info` as metadata",
    "slime": "`prompt`, `label` and `metadata`",
}
"""Schemas that need no keys, and what is read of them."""
VERL_IMAGES = "images"
"""verl's column of the images that stand where the prompt says `<image>`."""
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePrompt:
    """One prompt as its file has it."""

    prompt: str | Messages
    label: Any
    metadata: dict[str, Any]
    """Holds `tools` too, where there are any."""
    tools: list[Any] | None
    schema: str | None = None
    """Of `SCHEMAS`, if the prompt was found by it and not by a key."""


def read_prompt(row: SourceRow, settings: PromptSettings) -> SourcePrompt:
    """DataError with the row's place and keys if a key is missing or holds something else than it should."""
    tools = read_tools(row, settings.tool_key)
    is_unnamed = settings.input_key == USUAL_INPUT_KEY and lookup(row.values, USUAL_INPUT_KEY) is MISSING
    schema = schema_of(row.values) if is_unnamed else None
    metadata = read_metadata(row, settings.metadata_key)
    return SourcePrompt(
        prompt=read_text_or_messages(row, "prompt" if schema else settings.input_key),
        label=read_label(row, settings.label_key, schema),
        metadata=metadata if tools is None else {**metadata, "tools": tools},
        tools=tools,
        schema=schema,
    )


def lookup(values: Mapping[str, Any], key: str) -> Any:
    """The value of a column, or of one inside it that dots lead to; `MISSING` without."""
    if key in values or "." not in key:
        return values.get(key, MISSING)
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return MISSING
        found = found[part]
    return found


def schema_of(values: Mapping[str, Any]) -> str | None:
    if is_verl(values):
        return "verl"
    return "slime" if "prompt" in values and "label" in values else None


def is_verl(values: Mapping[str, Any]) -> bool:
    """verl's rows: `prompt`, and the label inside `reward_model`."""
    reward_model = values.get("reward_model")
    return "prompt" in values and isinstance(reward_model, dict) and "ground_truth" in reward_model


def has_verl_images(values: Mapping[str, Any]) -> bool:
    return is_verl(values) and bool(values.get(VERL_IMAGES))


def read_text_or_messages(row: SourceRow, key: str) -> str | Messages:
    prompt = required(row, key, "input_key")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(turn, dict) and "role" in turn for turn in prompt):
        return prompt
    raise DataError(
        f"{row.place}: `{key}` is neither text nor a list of messages with a role: {shorten(prompt)}",
        hint='write "…" or [{"role": "user", "content": "…"}]',
    )


def read_label(row: SourceRow, key: str | None, schema: str | None) -> Any:
    if key is None and is_verl(row.values):
        return row.values["reward_model"]["ground_truth"]
    if key is None:
        return row.values["label"] if schema == "slime" else None
    return required(row, key, "label_key")


def read_metadata(row: SourceRow, key: str) -> dict[str, Any]:
    if lookup(row.values, key) is MISSING and is_verl(row.values):
        named = {"data_source": row.values["data_source"]} if "data_source" in row.values else {}
        return named | as_dict(row, "extra_info")
    return as_dict(row, key)


def as_dict(row: SourceRow, key: str) -> dict[str, Any]:
    value = decoded(row, key)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{row.place}: `{key}` is not a dict: {shorten(value)}", hint="--metadata-key COLUMN")
    return dict(value)


def read_tools(row: SourceRow, key: str) -> list[Any] | None:
    tools = decoded(row, key)
    if tools is None or tools == "":
        return None
    if not isinstance(tools, list):
        raise DataError(f"{row.place}: `{key}` is not a list of tools: {shorten(tools)}", hint="--tool-key COLUMN")
    return tools


def decoded(row: SourceRow, key: str) -> Any:
    """A value, or what its JSON text means; None where there is none."""
    value = lookup(row.values, key)
    if value is MISSING:
        return None
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise DataError(f"{row.place}: `{key}` is text but not JSON ({error}): {shorten(value)}") from error


def required(row: SourceRow, key: str, setting: str) -> Any:
    value = lookup(row.values, key)
    if value is not MISSING:
        return value
    present = list(row.values)
    usual = [name for name in USUAL_KEYS[setting] if name in present]
    meant = difflib.get_close_matches(key, present, n=1) or usual or ["COLUMN"]
    raise DataError(
        f"{row.place} has no `{key}`; its keys are {', '.join(present) or 'none'}",
        hint=f"--{setting.replace('_', '-')} {meant[0]}",
    )


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
