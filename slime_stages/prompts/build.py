"""From prompt data to the rows of the prompt table: chat template, images, tokens, length filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from slime_stages.errors import DataError, UsageError
from slime_stages.prompts.files import SourceRow
from slime_stages.prompts.locate import read_rows
from slime_stages.prompts.media import IMAGE, place_media
from slime_stages.prompts.parts import in_parts
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.source import Messages, SourcePrompt, has_verl_images, read_prompt
from slime_stages.prompts.table import PromptRow
from slime_stages.prompts.tokenizer import load_processor, load_tokenizer, media_ids, text_ids
from slime_stages.run.digest import digest_bytes, digest_json

TOKENIZED_TEXTS = 4096
"""Texts given to the tokenizer at once, so that it uses its threads."""
TOKENIZED_BYTES = 1 << 26
"""Fewer where they have images."""


@dataclass(slots=True, kw_only=True)
class PromptCounts:
    """What became of the rows that were read."""

    kept: int = 0
    dropped: int = 0
    """Left out because they have more than `rollout_max_prompt_len` tokens."""
    longest_dropped: int = 0
    """Tokens of the longest of them."""
    unmeasured: int = 0
    """Stayed messages: they have no length before a generate function makes text of them."""
    schemas: Counter[str] = field(default_factory=Counter)
    """Rows that needed no keys, by schema."""
    images_unread: int = 0
    """Rows with images in verl's column for them, which no key names."""

    @property
    def read(self) -> int:
        return self.kept + self.dropped


def build_prompts(settings: PromptSettings, model: Path, counts: PromptCounts) -> Iterator[PromptRow]:
    """Read, template and tokenise all prompts, and leave out those that are too long, in bounded memory.

    `counts` is whole when the last row was taken. DataError names the first row that is not as it should be, and files
    of which nothing is left.
    """
    if settings.disable_rollout_global_dataset:
        counts.kept = 1
        yield blank_prompt()
        return
    builder = _Builder(settings, model)
    source_rows = chain.from_iterable(map(read_rows, settings.prompt_data))
    for row in builder.tokenized(builder.rendered(source_rows, counts)):
        length = 0 if row.prompt_token_ids is None else len(row.prompt_token_ids)
        if settings.rollout_max_prompt_len is not None and length > settings.rollout_max_prompt_len:
            counts.dropped += 1
            counts.longest_dropped = max(counts.longest_dropped, length)
            continue
        counts.kept += 1
        counts.unmeasured += row.prompt_token_ids is None
        yield row
    refuse_nothing(counts, settings)


def blank_prompt() -> PromptRow:
    source = SourcePrompt(prompt="", label=None, metadata={}, tools=None)
    return PromptRow(
        prompt_id=digest_json(content_of(source, [])),
        prompt="",
        prompt_token_ids=[],
        label=None,
        metadata={},
        source="no prompt data",
    )


class _Builder:
    """Source rows to prompt rows, for one model."""

    def __init__(self, settings: PromptSettings, model: Path) -> None:
        if other := sorted(settings.multimodal_keys.keys() - {IMAGE}):
            raise UsageError(f"multimodal_keys has {', '.join(other)}", hint=f'{{"{IMAGE}": COLUMN}} is what there is')
        self._settings = settings
        self._tokenizer = load_tokenizer(model)
        self._processor = load_processor(model) if settings.multimodal_keys else None
        if settings.apply_chat_template and not self._tokenizer.chat_template:
            raise UsageError(
                f"the tokenizer {self._tokenizer.name_or_path} has no chat template",
                hint="leave --apply-chat-template out, or put a chat_template.jinja into the folder",
            )

    def rendered(self, rows: Iterable[SourceRow], counts: PromptCounts) -> Iterator[PromptRow]:
        """Rows whose ids are still missing."""
        for row in rows:
            source = read_prompt(row, self._settings)
            if source.schema:
                counts.schemas[source.schema] += 1
            counts.images_unread += not self._settings.multimodal_keys and has_verl_images(row.values)
            prompt, media = self._with_media(row, source)
            yield PromptRow(
                prompt_id=prompt_id(row, replace(source, prompt=prompt) if media else source, media),
                prompt=self._templated(row, source, prompt),
                prompt_token_ids=None,
                label=source.label,
                metadata=source.metadata,
                source=f"{row.path}:{row.number}",
                media=media or None,
            )

    def tokenized(self, rows: Iterable[PromptRow]) -> Iterator[PromptRow]:
        """The rows in their order, with ids of those that are text."""
        for part in in_parts(rows, TOKENIZED_TEXTS, lambda row: row.media_bytes, TOKENIZED_BYTES):
            ids = iter(text_ids(self._tokenizer, [str(row.prompt) for row in part if self._is_plain(row)]))
            for row in part:
                if self._is_plain(row):
                    yield replace(row, prompt_token_ids=next(ids))
                elif isinstance(row.prompt, str):
                    yield replace(row, prompt_token_ids=self._media_ids(row))
                else:
                    yield row

    def _is_plain(self, row: PromptRow) -> bool:
        return isinstance(row.prompt, str) and (self._processor is None or not row.media)

    def _media_ids(self, row: PromptRow) -> list[int]:
        assert isinstance(row.prompt, str)
        try:
            return media_ids(self._processor, row.prompt, row.media or ())
        except (ValueError, TypeError, IndexError, RuntimeError, StopIteration) as error:
            raise DataError(
                f"{row.source}: the model's processor refuses its text and images ({type(error).__name__} {error})",
                hint="see whether the chat template writes the model's own token for each image",
            ) from error

    def _with_media(self, row: SourceRow, source: SourcePrompt) -> tuple[str | Messages, list[bytes]]:
        if not self._settings.multimodal_keys:
            return source.prompt, []
        return place_media(row, as_messages(source.prompt), self._settings.multimodal_keys)

    def _templated(self, row: SourceRow, source: SourcePrompt, prompt: str | Messages) -> str | Messages:
        settings = self._settings
        implied = settings.apply_chat_template_if_recognised and source.schema and isinstance(source.prompt, list)
        if settings.apply_chat_template or (implied and self._tokenizer.chat_template):
            return apply_template(row, as_messages(prompt), source.tools, settings, self._tokenizer)
        return prompt


def as_messages(prompt: str | Messages) -> Messages:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def prompt_id(row: SourceRow, source: SourcePrompt, media: Sequence[bytes]) -> str:
    try:
        return digest_json(content_of(source, media))
    except TypeError as error:
        raise DataError(
            f"{row.place} holds a value that JSON cannot: {error}", hint="write it as text, large whole numbers too"
        ) from error


def content_of(source: SourcePrompt, media: Sequence[bytes]) -> dict[str, Any]:
    """What a prompt's identity is made of."""
    content = {
        "prompt": source.prompt,
        "label": source.label,
        "metadata": source.metadata,
        "tools": source.tools,
    }
    return content | {"media": [digest_bytes(data) for data in media]} if media else content


def apply_template(
    row: SourceRow, messages: Messages, tools: list[Any] | None, settings: PromptSettings, tokenizer: Any
) -> str:
    import jinja2

    try:
        text: str = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **settings.apply_chat_template_kwargs
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{row.place}: the chat template refuses it: {error}", hint="look at the roles and contents of its messages"
        ) from error
    return text


def refuse_nothing(counts: PromptCounts, settings: PromptSettings) -> None:
    if counts.kept:
        return
    names = ", ".join(settings.prompt_data)
    if counts.dropped:
        raise DataError(
            f"all {counts.dropped} prompts of {names} have more than {settings.rollout_max_prompt_len} tokens",
            hint=f"--rollout-max-prompt-len {counts.longest_dropped}",
        )
    raise DataError(f"{names or 'an empty list of files'} holds no prompts", hint="--prompt-data FILE")
