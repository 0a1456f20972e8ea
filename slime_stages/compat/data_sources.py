"""slime's data sources as base classes: prompts of a file in the order that a run takes them, and a buffer before them.

A run's own prompts need none of this; see `--data-source-path`.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from slime_stages.compat.datasets import Dataset
from slime_stages.compat.processing import load_processor, load_tokenizer
from slime_stages.errors import UsageError
from slime_stages.plugins import load_function
from slime_stages.sample import Sample

Group = list[Sample]
STATE = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")


class DataSource(ABC):
    """Where a rollout's prompts come from."""

    @abstractmethod
    def get_samples(self, num_samples: int) -> list[Group]:
        """So many groups, each of `n_samples_per_prompt` samples."""

    @abstractmethod
    def add_samples(self, samples: list[Group]) -> None:
        """Take groups, to be given again."""

    @abstractmethod
    def save(self, rollout_id: int) -> None:
        """Write below `args.save` what `load` needs."""

    @abstractmethod
    def load(self, rollout_id: int | None = None) -> None:
        """Go on from what `save` wrote below `args.load`."""

    @abstractmethod
    def __len__(self) -> int:
        """Prompts in all."""


class RolloutDataSource(DataSource):
    """The prompts of `--prompt-data`, one epoch after the other; samples without a prompt where there are none."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = self.sample_offset = self.sample_group_index = self.sample_index = 0
        self.metadata: dict[str, Any] = {}
        self.dataset = _dataset(args) if args.rollout_global_dataset and args.prompt_data else None

    def get_samples(self, num_samples: int) -> list[Group]:
        return [self._group(self._next_prompt()) for _ in range(num_samples)]

    def add_samples(self, samples: list[Group]) -> None:
        raise UsageError(f"{type(self).__name__} takes nothing back", hint="derive it from RolloutDataSourceWithBuffer")

    def save(self, rollout_id: int) -> None:
        path = self._state_path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({name: getattr(self, name) for name in STATE}))

    def load(self, rollout_id: int | None = None) -> None:
        if self.args.load is None or not (path := self._state_path(self.args.load, rollout_id)).exists():
            return
        for name, value in json.loads(path.read_text()).items():
            setattr(self, name, value)
        self._shuffle()

    def __len__(self) -> int:
        return 0 if self.dataset is None else len(self.dataset)

    def _next_prompt(self) -> Sample:
        if self.dataset is None:
            return Sample()
        if self.sample_offset == len(self.dataset):
            self.sample_offset, self.epoch_id = 0, self.epoch_id + 1
        if self.sample_offset == 0:
            self._shuffle()
        self.sample_offset += 1
        return self.dataset[self.sample_offset - 1]

    def _shuffle(self) -> None:
        if self.dataset is not None and self.args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)

    def _group(self, prompt: Sample) -> Group:
        group = [copy.deepcopy(prompt) for _ in range(self.args.n_samples_per_prompt)]
        for sample in group:
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
        self.sample_group_index += 1
        return group

    @staticmethod
    def _state_path(folder: str, rollout_id: int | None) -> Path:
        return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}.json"


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """Gives groups that were added before any new one. The buffer is not saved."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: list[Group] = []
        self.buffer_filter = pop_first if args.buffer_filter_path is None else load_function(args.buffer_filter_path)

    def get_samples(self, num_samples: int) -> list[Group]:
        held = self.buffer_filter(self.args, None, self.buffer, num_samples) if self.buffer and num_samples else []
        return [*held, *super().get_samples(num_samples - len(held))]

    def add_samples(self, samples: list[Group]) -> None:
        count = self.args.n_samples_per_prompt
        for group in samples:
            if not isinstance(group, list) or len(group) != count:
                raise UsageError(f"a group is a list of n_samples_per_prompt = {count} samples, not {str(group)[:80]}")
        self.buffer += samples

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        return self.metadata

    def get_buffer_length(self) -> int:
        return len(self.buffer)


def pop_first(args: Any, rollout_id: int | None, buffer: list[Group], num_samples: int) -> list[Group]:
    """Take the oldest groups out of the buffer."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


def _dataset(args: Any) -> Dataset:
    return Dataset(
        args.prompt_data,
        tokenizer=load_tokenizer(args.hf_checkpoint),
        processor=load_processor(args.hf_checkpoint),
        max_length=args.rollout_max_prompt_len,
        prompt_key=args.input_key,
        multimodal_keys=args.multimodal_keys,
        label_key=args.label_key,
        metadata_key=args.metadata_key,
        tool_key=args.tool_key,
        apply_chat_template=args.apply_chat_template,
        apply_chat_template_kwargs=args.apply_chat_template_kwargs,
        seed=args.rollout_seed,
    )
