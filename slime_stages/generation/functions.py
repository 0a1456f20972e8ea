"""What a rollout function of the user's gets and returns, under slime's names.

def generate_rollout(args, rollout_id, data_source, evaluation=False):
    groups = data_source.get_samples(args.rollout_batch_size)
    ...
    return RolloutFnTrainOutput(samples=groups, metrics={"rollout/tool_calls": 3.5})
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slime_stages.errors import UsageError
from slime_stages.sample import Sample

Group = list[Sample]


@dataclass
class RolloutFnTrainOutput:
    """Groups of samples; each attempt of a group is a sample, or the list of those that it fanned out into."""

    samples: list[Any]
    metrics: dict[str, Any] | None = None
    """Added to those of the shard."""


@dataclass
class RolloutFnEvalOutput:
    """For each data set `{"samples": [...], "rewards": [...], "truncated": [...]}`; the last two may be left out."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def flat(nested: Any) -> Iterator[Sample]:
    """The samples in lists of lists, in their order."""
    for item in nested if isinstance(nested, list | tuple) else [nested]:
        if isinstance(item, list | tuple):
            yield from flat(item)
        elif isinstance(item, Sample):
            yield item


def checked_groups(made: Any, *, positions: Sequence[int], samples_per_prompt: int, path: str) -> list[Group]:
    """The groups that a function returned, flat, in the order of their prompts.

    UsageError names the group that is not as it should be. Samples without ids get those of their place.
    """
    if not isinstance(made, list):
        raise UsageError(f"`{path}` returned {type(made).__name__}", hint="return RolloutFnTrainOutput(samples=groups)")
    parts = _by_prompt(made, path) if made and all(isinstance(item, Sample) for item in made) else made
    groups: dict[int, Group] = {}
    free = iter(positions)
    for number, part in enumerate(parts):
        group = _flat_group(part, f"group {number} of what `{path}` returned")
        if not group:
            continue
        place = _place_of(group, samples_per_prompt)
        place = next((each for each in free if each not in groups), None) if place is None else place
        if place is None or place not in positions:
            where = "more groups than" if place is None else f"samples of prompt {place}, which is none of"
            raise UsageError(
                f"`{path}` returned {where} the {len(positions)} prompts of its shard",
                hint="return the groups that data_source.get_samples(args.rollout_batch_size) gives",
            )
        if place in groups:
            raise UsageError(f"`{path}` returned two groups of prompt {place}", hint="one list for each prompt")
        groups[place] = _with_ids(group, place, samples_per_prompt)
    _check_executions(groups, path)
    return [groups[place] for place in sorted(groups)]


def _by_prompt(samples: list[Sample], path: str) -> list[Group]:
    """A flat list, as one group for each prompt."""
    groups: dict[int, Group] = {}
    for sample in samples:
        if sample.group_index is None:
            raise UsageError(
                f"`{path}` returned a flat list with a sample that has no group_index", hint="return a list of groups"
            )
        groups.setdefault(sample.group_index, []).append(sample)
    return list(groups.values())


def _flat_group(part: Any, where: str) -> Group:
    """The samples of a group. Attempts are samples or lists of siblings, also mixed; an empty list is no sample."""
    if not isinstance(part, list):
        raise UsageError(f"{where} is {type(part).__name__}, not a list of samples", hint="a list for each prompt")
    flat: Group = []
    for number, attempt in enumerate(part):
        siblings = attempt if isinstance(attempt, list) else [attempt]
        if not all(isinstance(sibling, Sample) for sibling in siblings):
            kinds = ", ".join(sorted({type(sibling).__name__ for sibling in siblings}))
            raise UsageError(f"{where} holds {kinds}", hint="an attempt is a Sample or a list of Samples")
        ids = {sibling.rollout_id for sibling in siblings}
        if len(siblings) > 1 and (len(ids) > 1 or None in ids):
            shown = ", ".join(str(sibling.rollout_id) for sibling in siblings)
            raise UsageError(
                f"{where}: the {len(siblings)} samples of attempt {number} have the rollout_ids {shown}",
                hint="samples that one attempt fanned out into share their rollout_id",
            )
        flat += siblings
    return flat


def _place_of(group: Group, samples_per_prompt: int) -> int | None:
    """The prompt that a group says it answers."""
    for sample in group:
        if sample.group_index is not None:
            return sample.group_index
        if sample.index is not None:
            return sample.index // samples_per_prompt
    return None


def _with_ids(group: Group, place: int, samples_per_prompt: int) -> Group:
    numbers: dict[Any, int] = {}
    for row, sample in enumerate(group):
        sample.group_index = place
        number = numbers.setdefault(("row", row) if sample.rollout_id is None else sample.rollout_id, len(numbers))
        if sample.index is None:
            sample.index = place * samples_per_prompt + min(number, samples_per_prompt - 1)
    return group


def _check_executions(groups: dict[int, Group], path: str) -> None:
    owner: dict[int, int] = {}
    for place, group in groups.items():
        for sample in group:
            if sample.rollout_id is not None and owner.setdefault(sample.rollout_id, place) != place:
                raise UsageError(
                    f"`{path}` returned the rollout_id {sample.rollout_id} for prompts {owner[sample.rollout_id]} and "
                    f"{place}",
                    hint="a rollout_id names one execution; sample.index is free for it",
                )
