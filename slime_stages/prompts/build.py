"""From prompt data to the rows of the prompt table: chat template, tokens, length filter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from slime_stages.digest import digest_json
from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.prompts.files import SourceRow, read_rows
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.source import SourcePrompt, read_prompt
from slime_stages.prompts.table import PromptRow

TOKENIZED_TEXTS = 4096
"""Texts given to the tokenizer at once, so that it uses its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompts:
    """The rows to write, and what became of the others."""

    rows: list[PromptRow]
    read_count: int
    """Rows in the files, or in their slices."""
    dropped_count: int
    """Rows left out because they have more than `rollout_max_prompt_len` tokens."""
    longest_dropped: int
    """Tokens of the longest of them."""
    unmeasured_count: int
    """Rows that stayed messages: they have no length before a generate function makes text of them."""


def build_prompt_table(settings: PromptSettings, tokenizer_folder: Path) -> BuiltPrompts:
    """Read, template and tokenise all prompts, and leave out those that are too long.

    DataError names the first row that is not as it should be, and a file of which nothing is left.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    source_rows = chain.from_iterable(map(read_rows, settings.prompt_data))
    rows = tokenize(render(source_rows, settings, tokenizer), tokenizer)
    kept: list[PromptRow] = []
    dropped_lengths: list[int] = []
    for row in rows:
        if is_too_long(row, settings.rollout_max_prompt_len):
            dropped_lengths.append(token_count(row))
        else:
            kept.append(row)
    built = BuiltPrompts(
        rows=kept,
        read_count=len(kept) + len(dropped_lengths),
        dropped_count=len(dropped_lengths),
        longest_dropped=max(dropped_lengths, default=0),
        unmeasured_count=sum(row.prompt_token_ids is None for row in kept),
    )
    refuse_nothing(built, settings)
    return built


def load_tokenizer(folder: Path) -> Any:
    """transformers' own choice of class: a bare `tokenizer.json` does not say what Llama or Qwen classes add to it."""
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise MissingInputError(f"there is no model folder {folder}", hint="--hf-checkpoint FOLDER, on shared storage")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{folder} holds no tokenizer that can be loaded: {reason}", hint=f"ls {folder}") from error


def render(rows: Iterable[SourceRow], settings: PromptSettings, tokenizer: Any) -> Iterator[PromptRow]:
    if settings.apply_chat_template and not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer {tokenizer.name_or_path} has no chat template",
            hint="leave --apply-chat-template out, or put a chat_template.jinja into the folder",
        )
    for row in rows:
        source = read_prompt(row, settings)
        yield PromptRow(
            prompt_id=prompt_id(row, source),
            prompt=apply_template(row, source, settings, tokenizer) if settings.apply_chat_template else source.prompt,
            prompt_token_ids=None,
            label=source.label,
            metadata=source.metadata,
            source=f"{row.path}:{row.number}",
        )


def prompt_id(row: SourceRow, source: SourcePrompt) -> str:
    content = {
        "prompt": source.prompt,
        "label": source.label,
        "metadata": source.metadata,
        "tools": source.tools,
    }
    try:
        return digest_json(content)
    except TypeError as error:
        raise DataError(
            f"{row.place} holds a value that JSON cannot: {error}", hint="write it as text, large whole numbers too"
        ) from error


def apply_template(row: SourceRow, source: SourcePrompt, settings: PromptSettings, tokenizer: Any) -> str:
    import jinja2

    messages = [{"role": "user", "content": source.prompt}] if isinstance(source.prompt, str) else source.prompt
    try:
        text: str = tokenizer.apply_chat_template(
            messages,
            tools=source.tools,
            tokenize=False,
            add_generation_prompt=True,
            **settings.apply_chat_template_kwargs,
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{row.place}: the chat template refuses it: {error}", hint="look at the roles and contents of its messages"
        ) from error
    return text


def tokenize(rows: Iterable[PromptRow], tokenizer: Any) -> Iterator[PromptRow]:
    """The rows with ids of those that are text."""
    batch: list[PromptRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) == TOKENIZED_TEXTS:
            yield from with_ids(batch, tokenizer)
            batch = []
    yield from with_ids(batch, tokenizer)


def with_ids(rows: Sequence[PromptRow], tokenizer: Any) -> Iterator[PromptRow]:
    texts = [row.prompt for row in rows if isinstance(row.prompt, str)]
    ids = iter(tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else ())
    for row in rows:
        yield replace(row, prompt_token_ids=next(ids)) if isinstance(row.prompt, str) else row


def is_too_long(row: PromptRow, limit: int | None) -> bool:
    return limit is not None and token_count(row) > limit


def token_count(row: PromptRow) -> int:
    return 0 if row.prompt_token_ids is None else len(row.prompt_token_ids)


def refuse_nothing(built: BuiltPrompts, settings: PromptSettings) -> None:
    if built.rows:
        return
    names = ", ".join(settings.prompt_data)
    if built.dropped_count:
        raise DataError(
            f"all {built.dropped_count} prompts of {names} have more than {settings.rollout_max_prompt_len} tokens",
            hint=f"--rollout-max-prompt-len {built.longest_dropped}",
        )
    raise DataError(f"{names or 'an empty list of files'} holds no prompts", hint="--prompt-data FILE")
