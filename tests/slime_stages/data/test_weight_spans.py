"""Which version wrote which tokens of a response."""

from __future__ import annotations

from typing import Any

from slime_stages.data.weight_spans import SPANS_KEY
from slime_stages.sample import Sample


def answer(*spans: tuple[str, int, int]) -> dict[str, Any]:
    """What an engine tells: (version, first token, one past the last) of each."""
    told = [{"version": version, "start": start, "end": end} for version, start, end in spans]
    return {"finish_reason": {"type": "abort"}, "weight_version": spans[-1][0], "weight_versions": told}


def appended(*answers: tuple[int, dict[str, Any]]) -> Sample:
    sample = Sample(tokens=[1])
    for count, meta_info in answers:
        sample.append_response_tokens(None, tokens=[5] * count, log_probs=[-1.0] * count, meta_info=meta_info)
    return sample


def test_one_version_has_written_all_of_it_as_long_as_nothing_else_is_said() -> None:
    sample = appended((3, answer(("4@ab", 0, 3))), (2, answer(("4@ab", 0, 2))))

    assert sample.weight_versions == ["4", "4"]
    assert SPANS_KEY not in sample.metadata


def test_an_answer_over_which_the_weights_changed_has_the_tokens_of_each() -> None:
    sample = appended((5, answer(("4@ab", 0, 3), ("5@cd", 3, 5))))

    assert sample.weight_versions == ["4", "5"]
    assert sample.metadata[SPANS_KEY] == [["4", 0, 3], ["5", 3, 5]]


def test_a_response_that_goes_on_under_other_weights_has_them_too() -> None:
    first = (3, answer(("4", 0, 3)))
    sample = appended(first, (2, answer(("5", 0, 2))), (1, answer(("5", 0, 1))))

    assert sample.metadata[SPANS_KEY] == [["4", 0, 3], ["5", 3, 5], ["5", 5, 6]]


def test_an_engine_that_tells_no_spans_is_taken_at_its_word() -> None:
    told = [{"finish_reason": {"type": "abort"}, "weight_version": version} for version in (7, 8)]
    sample = appended((2, told[0]), (2, told[1]))

    assert sample.weight_versions == ["7", "8"]
    assert SPANS_KEY not in sample.metadata
