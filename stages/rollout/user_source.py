"""Prompts from a class of the user's, in place of the prompt table: slime's data source, with its state in the run.

    iterations/000012/data_source/     what `save` wrote below `args.save`, committed with the iteration's rollout

The next iteration begins with `load`, `args.load` being that folder. The ids of the samples are those of the plan.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slime_stages.config import Config
from slime_stages.config.hooks import BY_SETTING, load_hook
from slime_stages.errors import DataError, UsageError
from slime_stages.generation.sampling import sampling_of
from slime_stages.lineage import DATA_SOURCE
from slime_stages.prompts.order import sample_index, sampling_seed
from slime_stages.prompts.tokenizer import load_tokenizer
from slime_stages.run.commit import temporary_folder_name
from slime_stages.run.digest import digest_file, digest_json
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import Stage

Group = list[Sample]


def user_source_of(stage: Stage) -> UserSource | None:
    """The run's data source as the iteration before has left it; None for the prompt table."""
    if stage.config.plugins.data_source_path is None or stage.plan.split != "train":
        return None
    return UserSource(stage.run, stage.plan, stage.config)


class UserSource:
    """Groups by their number in the shard, each got once, and in this order in every attempt."""

    def __init__(self, run: RunDir, plan: Plan, config: Config) -> None:
        self._run, self._plan, self._config = run, plan, config
        self._path = config.plugins.data_source_path or ""
        self._args = config.as_args()
        made: Any = load_hook(BY_SETTING["data_source_path"], self._path)
        before = plan.data_source_from
        state = None if before is None else run.data_source_path(before)
        self._args.load = str(state) if state is not None and state.exists() else None
        self._source = made(self._args)
        if self._args.load is not None:
            self._source.load(before)
        self._groups: list[Group] = []
        self._tokenizer: Any = None

    def group(self, number: int) -> Group:
        """DataError if there are no more prompts."""
        slice_ = self._plan.shards[0]
        if number >= slice_.stop - slice_.start:
            raise UsageError(
                f"group {number} of a shard of {slice_.stop - slice_.start} was asked for",
                hint=f"nobody looks further into `{self._path}`: leave rollout_all_samples_process_path out",
            )
        while len(self._groups) <= number:
            position = slice_.start + len(self._groups)
            found = self._source.get_samples(1)
            if not found:
                raise DataError(f"`{self._path}` has no prompt for position {position} of the run")
            self._groups.append(self._asked(found[0], position))
        return self._groups[number]

    def give_back(self, groups: list[Group]) -> None:
        """What a rollout function did not use."""
        self._source.add_samples(groups)

    @contextmanager
    def saved(self, beside: Path, *, asked: int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """A folder to commit with the state after so many groups of the shard, and what the manifest says of it."""
        if asked:
            self.group(asked - 1)
        folder = temporary_folder_name(beside / DATA_SOURCE)
        folder.mkdir(parents=True)
        try:
            self._args.save = str(folder)
            self._source.save(self._plan.iteration)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            digests = {str(path.relative_to(folder)): digest_file(path) for path in files}
            yield folder, {DATA_SOURCE: {"files": digests, "content": digest_json(digests)}}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def place(self) -> Path:
        """Where the state of this iteration belongs."""
        return self._run.data_source_path(self._plan.iteration)

    def _asked(self, group: Any, position: int) -> Group:
        plan = self._plan
        count = plan.n_samples_per_prompt
        if not isinstance(group, list) or len(group) != count or not all(isinstance(each, Sample) for each in group):
            raise UsageError(
                f"`{self._path}` returned {str(group)[:80]} for position {position}",
                hint=f"get_samples(n) returns n lists of n_samples_per_prompt = {count} samples",
            )
        for number, sample in enumerate(group):
            index = sample_index(position, number, count)
            if not sample.tokens and isinstance(sample.prompt, str):
                sample.tokens = self._tokens(sample.prompt)
            seed = sampling_seed(plan.seed, plan.iteration, position, number)
            sample.group_index, sample.index = position, index
            sample.session_id = f"{plan.run_id}-{plan.split}-{plan.iteration}-{index}"
            sample.sampling_params = sampling_of(self._config).params(seed, prompt_length=len(sample.tokens))
        return group

    def _tokens(self, prompt: str) -> list[int]:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._run.weights_path(0))
        return list(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])
