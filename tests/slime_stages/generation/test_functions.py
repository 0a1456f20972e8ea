"""What a rollout function may return, and how it is put in order."""

from __future__ import annotations

from typing import Any

import pytest

from slime_stages.errors import UsageError
from slime_stages.generation.functions import checked_groups
from slime_stages.sample import Sample


def sample(prompt: int | None = None, number: int = 0, execution: int | None = None) -> Sample:
    """Of 2 samples a prompt."""
    index = None if prompt is None else prompt * 2 + number
    return Sample(group_index=prompt, index=index, rollout_id=execution)


def checked(made: Any) -> list[list[Sample]]:
    return checked_groups(made, positions=range(4, 8), samples_per_prompt=2, path="my.rollout")


def shape(groups: list[list[Sample]]) -> list[tuple[int | None, list[int | None]]]:
    return [(group[0].group_index, [each.index for each in group]) for group in groups]


def test_groups_come_back_in_the_order_of_their_prompts() -> None:
    assert shape(checked([[sample(6), sample(6, 1)], [sample(4), sample(4, 1)]])) == [(4, [8, 9]), (6, [12, 13])]


def test_a_flat_list_is_sorted_into_groups() -> None:
    assert shape(checked([sample(5), sample(4), sample(5, 1)])) == [(4, [8]), (5, [10, 11])]


def test_attempts_may_be_samples_lists_of_siblings_and_empty_lists_side_by_side() -> None:
    group = [sample(4), [sample(4, 1, execution=9), sample(4, 1, execution=9)], []]

    assert shape(checked([group])) == [(4, [8, 9, 9])]


def test_a_group_without_samples_vanishes() -> None:
    assert shape(checked([[], [[], []], [sample(7)]])) == [(7, [14])]


def test_samples_without_ids_take_those_of_the_free_prompts() -> None:
    made = checked([[sample(), sample()], [sample(5)], [[sample(execution=3), sample(execution=3)], sample()]])

    assert shape(made) == [(4, [8, 9]), (5, [10]), (6, [12, 12, 13])]


def test_an_index_alone_says_which_prompt_is_meant() -> None:
    assert shape(checked([[Sample(index=13)]])) == [(6, [13])]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "`my.rollout` returned NoneType"),
        ([3], "group 0 of what `my.rollout` returned is int"),
        ([[sample(4), "text"]], "group 0 of what `my.rollout` returned holds str"),
        ([[sample(4), [sample(4, 1), sample(4, 1)]]], "the 2 samples of attempt 1 have the rollout_ids None, None"),
        (
            [[], [[sample(4, 0, 1), sample(4, 0, 2)]]],
            "group 1 .* of attempt 0 have the rollout_ids 1, 2",
        ),
        ([[sample(3)]], "samples of prompt 3, which is none of the 4 prompts of its shard"),
        ([[sample(4)], [sample(4, 1)]], "two groups of prompt 4"),
        ([[sample()] for _ in range(5)], "more groups than the 4 prompts"),
        ([[sample(4, 0, 1)], [sample(5, 0, 1)]], "the rollout_id 1 for prompts 4 and 5"),
        ([sample()], "a flat list with a sample that has no group_index"),
    ],
)
def test_anything_else_is_refused_with_the_group(made: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        checked(made)
