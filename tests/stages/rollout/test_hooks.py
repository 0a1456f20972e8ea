"""Functions of the user over groups: called as slime calls them, and told what is wrong with them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from slime_stages.config import Config
from slime_stages.errors import UsageError
from slime_stages.generation.filters import DynamicFilterOutput
from slime_stages.rewards.scoring import Scorer
from slime_stages.sample import Sample, Status
from stages.rollout.hooks import OVER_GROUPS, buffer_filter, filter_samples, load_hooks, process_all_samples
from stages.rollout.judging import Judge, Verdict, verdict_of
from tests.slime_stages.config.settings import resolved

HERE = "tests.stages.rollout.test_hooks"


def no_arguments() -> None:
    pass


def losing(args: Any, rollout_id: Any, buffer: list[Any], num_samples: int) -> list[Any]:
    buffer.clear()
    return []


def doubling(args: Any, rollout_id: Any, buffer: list[Any], num_samples: int) -> list[Any]:
    return buffer[:num_samples]


def last(args: Any, rollout_id: Any, buffer: list[Any], num_samples: int) -> list[Any]:
    assert rollout_id is None
    return [buffer.pop()]


def removing(args: Any, groups: list[list[Sample]]) -> None:
    for sample in groups[-1]:
        sample.remove_sample = args.rollout_batch_size == 4


def counting(args: Any, all_groups: list[list[Sample]], get_samples: Any) -> None:
    all_groups[0][0].metadata["upcoming"] = len(get_samples(3))


def settings(**more: Any) -> Config:
    return resolved(partial_rollout=True, **more).config


def groups(count: int) -> list[list[Sample]]:
    return [[Sample(group_index=number, metadata={})] for number in range(count)]


@pytest.mark.parametrize("setting", OVER_GROUPS)
@pytest.mark.parametrize("separator", [".", ":"])
def test_a_function_that_takes_other_arguments_is_refused_before_anything_is_asked(
    setting: str, separator: str
) -> None:
    config = settings(**{setting: f"{HERE}{separator}no_arguments"})

    with pytest.raises(UsageError, match="too many positional arguments"):
        load_hooks(config)


def test_a_buffer_filter_takes_groups_out_of_the_buffer() -> None:
    choose, buffer = buffer_filter(settings(buffer_filter_path=f"{HERE}.last")), groups(3)
    assert choose is not None

    assert choose(buffer, 2)[0][0].group_index == 2
    assert len(buffer) == 2


@pytest.mark.parametrize(
    ("name", "words"), [("losing", "returned 0 and left 0"), ("doubling", "returned 2 and left 3")]
)
def test_a_buffer_filter_can_neither_lose_nor_double_a_group(name: str, words: str) -> None:
    choose = buffer_filter(settings(buffer_filter_path=f"{HERE}.{name}"))
    assert choose is not None

    with pytest.raises(UsageError, match=f"was asked for 2 of 3 groups, {words}"):
        choose(groups(3), 2)


def test_a_sample_filter_marks_what_is_not_to_be_trained_on() -> None:
    kept = groups(2)

    filter_samples(settings(rollout_sample_filter_path=f"{HERE}.removing"), kept)

    assert [group[0].remove_sample for group in kept] == [False, True]


def test_all_samples_are_shown_with_a_way_to_see_what_comes_next() -> None:
    finished = groups(2)

    process_all_samples(settings(rollout_all_samples_process_path=f"{HERE}.counting"), finished, groups)

    assert finished[0][0].metadata == {"upcoming": 3}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, Verdict(keep=True)),
        (0, Verdict(keep=False)),
        (DynamicFilterOutput(keep=False, reason="dull"), Verdict(keep=False, reason="dull")),
        (
            SimpleNamespace(keep=1, reason="", keep_when_insufficient=True),
            Verdict(keep=True, keep_when_insufficient=True),
        ),
    ],
)
def test_a_filter_answers_with_an_object_or_with_a_truth_value(answer: Any, expected: Verdict) -> None:
    assert verdict_of(answer) == expected


def same_length(args: Any, group: list[Sample], **kwargs: Any) -> bool:
    return len(group) == 2


def broken(args: Any, group: list[Sample]) -> bool:
    raise KeyError("reward")


def judged(samples: list[Sample], name: str, *, is_asked: bool = True) -> Verdict:
    config = settings(dynamic_sampling_filter_path=f"{HERE}.{name}")
    with Scorer(config) as scorer:
        return asyncio.run(Judge.of(config, scorer, is_asked=is_asked)(samples))


def test_a_failed_sample_takes_no_part_in_judging_its_group() -> None:
    scored = [Sample(reward=1.0, status=Status.COMPLETED) for _ in range(2)]

    assert judged([*scored, Sample(status=Status.FAILED)], "same_length") == Verdict(keep=True)
    assert judged([Sample(status=Status.FAILED)], "same_length") == Verdict(keep=False, reason="reward_skipped")


def test_an_evaluation_is_not_filtered() -> None:
    assert judged([Sample(reward=1.0)], "same_length", is_asked=False) == Verdict(keep=True)


def test_the_error_of_a_filter_names_it_and_the_group() -> None:
    with pytest.raises(UsageError, match=r"test_hooks.broken` failed on group 7: KeyError: 'reward'"):
        judged([Sample(group_index=7, reward=1.0)], "broken")
