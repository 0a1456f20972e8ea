"""What the engine says of its answers reaches the samples: weight versions, the router's choices, nuclei, counters."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from slime_stages.sample import Sample
from tests.slime_stages.agent.trajectory.conversations import Session


def encoded(values: list[int]) -> str:
    return base64.b64encode(np.array(values, "<i4").tobytes()).decode()


def experts(length: int, value: int) -> dict[str, Any]:
    """Choices of 1 layer × 2 experts at `length` - 1 positions, all the same."""
    return {"routed_experts": encoded([value, value + 1] * (length - 1))}


def rows(sample: Sample) -> list[list[int]]:
    assert sample.rollout_routed_experts is not None
    return sample.rollout_routed_experts.reshape(-1, 2).tolist()


def test_weight_versions_and_counters_are_those_of_the_trained_turns() -> None:
    session = Session().turn(["U q"], [1], "A x", [10], meta_info={"weight_version": "3", "prompt_tokens": 1})
    second = {"weight_version": "4", "prompt_tokens": 3, "cached_tokens": 2}
    session.turn(["U q", "A x", "T r"], [1, 10, 2], "A y", [11], meta_info=second)

    [sample] = session.samples()

    assert sample.weight_versions == ["3", "4"]
    assert (sample.prefix_cache_info.cached_tokens, sample.prefix_cache_info.total_prompt_tokens) == (2, 4)


def test_versions_that_changed_within_an_answer_are_told_by_their_tokens_and_cut_with_them() -> None:
    told = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
    meta = {"weight_version": "4", "weight_versions": told}

    def session() -> Session:
        return Session().turn(["U q"], [1], "A x", [10, 11, 12], meta_info=meta)

    [whole] = session().samples()
    [cut] = session().samples(max_sample_tokens=3)
    [early] = session().samples(max_sample_tokens=2)

    assert whole.weight_versions == cut.weight_versions == ["3", "4"]
    assert whole.metadata["weight_spans"] == [["3", 0, 1], ["4", 1, 3]]
    assert cut.metadata["weight_spans"] == [["3", 0, 1], ["4", 1, 2]]
    assert early.weight_versions == ["3"]


def test_nuclei_stand_by_trained_tokens_and_are_cut_with_them() -> None:
    meta = {"top_p_token_ids": encoded([10, 20, 11]), "top_p_token_offsets": encoded([0, 2, 3])}
    later = {"top_p_token_ids": encoded([12, 30]), "top_p_token_offsets": encoded([0, 1, 2])}

    def session() -> Session:
        first = Session().turn(["U q"], [1], "A x", [10, 11], meta_info=meta)
        return first.turn(["U q", "A x", "T r"], [1, 10, 11, 2], "A y", [12, 30], meta_info=later)

    [whole] = session().samples()
    [cut] = session().samples(max_sample_tokens=5)

    assert whole.rollout_top_p_token_offsets is not None
    assert whole.rollout_top_p_token_offsets.tolist() == [0, 2, 3, 3, 4, 5]
    assert whole.rollout_top_p_token_ids is not None
    assert whole.rollout_top_p_token_ids.tolist() == [10, 20, 11, 12, 30]
    assert cut.rollout_top_p_token_ids is not None
    assert cut.rollout_top_p_token_ids.tolist() == [10, 20, 11, 12]


def test_the_routers_choices_stand_as_they_were_when_a_token_was_sampled() -> None:
    session = Session(expert_shape=(1, 2)).turn(["U q"], [1], "A x", [10, 11], meta_info=experts(3, 5))
    session.turn(["U q", "A x", "T r"], [1, 10, 11, 2], "A y", [12], meta_info=experts(5, 7))

    [sample] = session.samples()

    assert rows(sample) == [[5, 6], [5, 6], [7, 8], [7, 8]]


def test_the_routers_choices_for_tokens_that_were_replaced_are_replaced() -> None:
    session = Session(expert_shape=(1, 2)).turn(["U q"], [1], "A x", [10, 11], meta_info=experts(3, 5))
    session.turn(["U q", "A x", "T r"], [1, 99, 11, 2], "A y", [12], meta_info=experts(5, 7))

    [whole] = session.samples()

    assert rows(whole) == [[5, 6], [7, 8], [7, 8], [7, 8]]


def test_the_routers_choices_are_cut_with_the_sample_and_missing_where_a_turn_has_none() -> None:
    def session(meta: dict[str, Any]) -> Session:
        first = Session(expert_shape=(1, 2)).turn(["U q"], [1], "A x", [10, 11], meta_info=experts(3, 5))
        return first.turn(["U q", "A x", "T r"], [1, 10, 11, 2], "A y", [12], meta_info=meta)

    [cut] = session(experts(5, 7)).samples(max_sample_tokens=3)
    [without] = session({}).samples()

    assert rows(cut) == [[5, 6], [5, 6]]
    assert without.rollout_routed_experts is None
