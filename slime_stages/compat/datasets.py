"""Prompt files as slime's `Dataset`: what the prompt table would hold, as samples in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_stages.data.multimodal import multimodal_inputs
from slime_stages.prompts.build import PromptCounts, build_prompts
from slime_stages.prompts.locate import read_rows
from slime_stages.prompts.order import epoch_order
from slime_stages.prompts.settings import PromptSettings
from slime_stages.prompts.table import PromptRow
from slime_stages.prompts.tokenizer import text_ids
from slime_stages.sample import Sample


class Dataset:
    """Prompts in the order of their files, or of an epoch. Those that are too long are left out."""

    def __init__(
        self,
        path: str | Sequence[str],
        tokenizer: Any,
        processor: Any = None,
        max_length: int | None = None,
        *,
        prompt_key: str = "text",
        multimodal_keys: Mapping[str, str] | None = None,
        label_key: str | None = None,
        tool_key: str | None = None,
        metadata_key: str = "metadata",
        seed: int = 42,
        apply_chat_template: bool = False,
        apply_chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        settings = PromptSettings(
            prompt_data=(path,) if isinstance(path, str) else tuple(path),
            input_key=prompt_key,
            label_key=label_key,
            metadata_key=metadata_key,
            tool_key=tool_key or "tools",
            multimodal_keys=multimodal_keys or {},
            apply_chat_template=apply_chat_template,
            apply_chat_template_kwargs=apply_chat_template_kwargs or {},
            rollout_max_prompt_len=max_length,
        )
        rows = build_prompts(settings, Path(tokenizer.name_or_path), PromptCounts())
        self.origin_samples = [_sample(row) for row in rows]
        self.samples = self.origin_samples
        self.seed = seed
        self.epoch_id = -1

    def shuffle(self, new_epoch_id: int) -> None:
        """Put them into the order of an epoch, whatever it was before."""
        order = epoch_order(new_epoch_id, len(self.origin_samples), self.seed)
        self.samples, self.epoch_id = [self.origin_samples[place] for place in order], new_epoch_id

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


def read_file(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of prompts, or of the slice `path@[a:b]`."""
    for row in read_rows(path):
        yield row.values


def filter_long_prompt(
    samples: Sequence[Sample], tokenizer: Any, processor: Any, max_length: int | None
) -> list[Sample]:
    """Without the texts that have more tokens; messages have no length yet."""
    texts = [sample.prompt for sample in samples if isinstance(sample.prompt, str)]
    if max_length is None or not texts:
        return list(samples)
    lengths = map(len, text_ids(tokenizer, texts))
    return [each for each in samples if not isinstance(each.prompt, str) or next(lengths) <= max_length]


def _sample(row: PromptRow) -> Sample:
    return Sample(
        prompt=row.prompt,
        label=row.label,
        metadata=dict(row.metadata),
        multimodal_inputs=multimodal_inputs(row.media),
        prompt_id=row.prompt_id,
    )
