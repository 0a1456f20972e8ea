from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import DataError, MissingInputError
from slime_stages.rewards.graders.ifbench import NLTK_DATA, arguments_of, grade_ifbench
from slime_stages.rewards.tasks import RewardTask
from slime_stages.sample import Sample
from tests.slime_stages.rewards.pool_tasks import open_pool

RANGE = "count:word_count_range"


def metadata(*names: str, kwargs: Any) -> dict[str, Any]:
    return {"instruction_id_list": list(names), "kwargs": kwargs}


@pytest.mark.parametrize(
    ("response", "reward"),
    [("one two three", 1.0), ("one two three four five", 0.0), ("", 0.0)],
)
def test_a_response_that_follows_its_instruction_gets_1_and_any_other_0(response: str, reward: float) -> None:
    given = metadata(RANGE, kwargs=[{"min_words": 2, "max_words": 4, "keyword": None}])

    assert grade_ifbench(response, "", given) == reward


def test_all_instructions_must_be_followed() -> None:
    given = metadata(RANGE, "format:no_whitespace", kwargs=[{"min_words": 1, "max_words": 4}, {}])

    assert grade_ifbench("one two", "", given) == 0.0
    assert grade_ifbench("one", "", given) == 1.0


def test_arguments_are_a_list_or_one_dict_for_all() -> None:
    assert arguments_of({"n": 1, "m": None}, 2) == [{"n": 1}, {"n": 1}]
    assert arguments_of([{"n": 1}, {"n": 2}], 3) == [{"n": 1}, {"n": 2}, {"n": 2}]
    assert arguments_of([{"n": 1}, {"n": 2}], 1) == [{"n": 1}]
    assert arguments_of(None, 2) == arguments_of([], 2) == [{}, {}]
    assert arguments_of([None, {"n": 2}], 2) == [{}, {"n": 2}]


def test_arguments_left_out_are_the_same_each_time_and_leave_other_dice_alone() -> None:
    random.seed(3)
    expected = random.Random(3).random()

    first = grade_ifbench("one two three", "", metadata("words:vowel", kwargs=None))

    assert random.random() == expected
    assert first == grade_ifbench("one two three", "", metadata("words:vowel", kwargs=None))


def test_no_network_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_stages.rewards.graders import ifbench

    ifbench._checkers.cache_clear()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked for an address"))

    assert grade_ifbench("one", "", metadata(RANGE, kwargs={"min_words": 1, "max_words": 1})) == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs `instruction_id_list`"),
        (metadata("count:nothing", kwargs=[{}]), "knows no instruction `count:nothing`"),
        (metadata(RANGE, kwargs=["a"]), "must be a dict or a list of dicts"),
    ],
)
def test_instructions_that_cannot_be_checked_are_errors_and_no_zeros(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        grade_ifbench("a", "", given)


def make_nltk_data(folder: Path) -> None:
    """Data in NLTK's formats with next to nothing in it: no abbreviation, two stop words, the tags of two words."""
    tagger, punkt, stopwords = "averaged_perceptron_tagger_eng", NLTK_DATA["punkt_tab"], NLTK_DATA["stopwords"]
    tagger_files = {"weights": {}, "tagdict": {"Write": "VB", "The": "DT"}, "classes": ["VB", "DT"]}
    punkt_files = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
    files = {f"{NLTK_DATA[tagger]}/{tagger}.{name}.json": json.dumps(value) for name, value in tagger_files.items()}
    files |= {f"{punkt}/{name}": "" for name in punkt_files} | {f"{stopwords}/english": "the\nis\n"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


NEEDING_DATA = [
    ("words:words_position", {"keyword": "kiwi"}, "A kiwi a day is one kiwi.", "A kiwi a day is one."),
    ("words:keywords_specific_position", {"keyword": "kiwi", "n": 2, "m": 1}, "I eat. kiwi now.", "kiwi. I eat."),
    ("ratio:stop_words", {"percentage": 40}, "the kiwi tastes good", "the kiwi is good"),
    ("format:title_case", {}, "Green Kiwis", "green kiwis"),
    ("words:start_verb", {}, "Write a poem.", "The poem is good."),
]
"""Instruction, arguments, a response that follows it, one that does not."""


def test_instructions_that_need_nltks_data_are_checked_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nltk_data(tmp_path)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    samples = [
        Sample(response=response, metadata=metadata(name, kwargs=arguments)).to_dict()
        for name, arguments, *responses in NEEDING_DATA
        for response in responses
    ]
    tasks = [RewardTask(key=str(row), samples=[sample], is_list=False) for row, sample in enumerate(samples)]

    with open_pool(args={"rm_type": "ifbench"}, workers=1) as pool:
        rewards = {int(outcome.key): outcome.rewards for outcome in pool.score(tasks)}

    assert [rewards[row] for row in range(len(samples))] == [[1.0], [0.0]] * len(NEEDING_DATA)


@pytest.mark.parametrize(("name", "arguments", "response", "_"), NEEDING_DATA)
def test_without_nltks_data_they_are_errors_and_no_zeros(
    name: str, arguments: dict[str, Any], response: str, _: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])

    with pytest.raises(MissingInputError, match=f"`{name}` needs data of NLTK"):
        grade_ifbench(response, "", metadata(name, kwargs=arguments))
