"""Linearisation by the vectors of slime's trajectories, and the cases around them."""

from __future__ import annotations

import pytest

from slime_stages.agent.trajectory import TurnRecord
from slime_stages.sample import Sample, Status
from tests.slime_stages.agent.trajectory.conversations import LOG_PROB, Session, shown


def two_turns(second_prompt: list[int], **settings: int) -> Session:
    """U q, an answer of 2 tokens, T r, an answer of one."""
    session = Session(**settings).turn(["U q"], [1, 2], "A x", [10, 11])
    return session.turn(["U q", "A x", "T r"], second_prompt, "A y", [12])


def test_a_prompt_that_repeats_what_is_held_goes_on_with_a_masked_tail() -> None:
    [sample] = two_turns([1, 2, 10, 11, 3]).samples()

    assert sample.tokens == [1, 2, 10, 11, 3, 12]
    assert sample.loss_mask == [1, 1, 0, 1]
    assert sample.rollout_log_probs == [LOG_PROB, LOG_PROB, 0.0, LOG_PROB]


def test_a_prompt_that_changes_the_last_answer_takes_its_place_untrained() -> None:
    [sample] = two_turns([1, 2, 10, 99, 3]).samples()

    assert shown([sample]) == [([1, 2, 10, 99, 3, 12], [0, 0, 0, 1])]
    assert sample.response_length == 4
    assert sample.rollout_log_probs == [0.0, 0.0, 0.0, LOG_PROB]


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_change_is_a_fork_where_answers_are_too_long_to_be_given_up(threshold: int) -> None:
    samples = two_turns([1, 2, 10, 99, 3], fork_threshold_tokens=threshold).samples()

    assert shown(samples) == [([1, 2, 10, 11], [1, 1]), ([1, 2, 10, 99, 3, 12], [1])]
    assert [sample.metadata["segment"] for sample in samples] == ["wipe", "final"]


def test_the_length_of_the_incoming_answer_decides_between_realigning_and_a_fork() -> None:
    session = Session(fork_threshold_tokens=3).turn(["U q"], [1, 2], "A x", [10] * 5)
    session.turn(["U q", "A x", "T r"], [1, 2, 99], "A y", [12, 13])
    session.turn(["U q", "A x", "T r", "A y", "T s"], [1, 2, 99, 88], "A z", [14, 15, 16])

    assert shown(session.samples()) == [([1, 2, 99, 12, 13], [0, 1, 1]), ([1, 2, 99, 88, 14, 15, 16], [1, 1, 1])]


def test_a_prompt_that_ends_within_the_last_answer_takes_its_place() -> None:
    assert shown(two_turns([1, 2, 10]).samples()) == [([1, 2, 10, 12], [0, 1])]


def test_a_prompt_that_ends_before_the_last_answer_begins_a_segment() -> None:
    assert shown(two_turns([1]).samples()) == [([1, 2, 10, 11], [1, 1]), ([1, 12], [1])]


def test_a_change_before_the_last_answer_begins_a_segment() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x", "T r"], [1, 10, 2], "A y", [11])
    session.turn(["U q", "A x", "T r", "A y", "T s"], [1, 99, 2, 11, 3], "A z", [12])

    assert shown(session.samples()) == [([1, 10, 2, 11], [1, 0, 1]), ([1, 99, 2, 11, 3, 12], [1])]


def test_a_turn_that_two_branches_share_is_trained_on_once() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x", "T a"], [1, 10, 2], "A y", [11])
    session.turn(["U q", "A x", "T b"], [1, 10, 3], "A z", [12])

    samples = session.samples()

    assert shown(samples) == [([1, 10, 2, 11], [1, 0, 1]), ([1, 10, 3, 12], [0, 0, 1])]
    assert [sample.rollout_log_probs for sample in samples] == [[LOG_PROB, 0.0, LOG_PROB], [0.0, 0.0, LOG_PROB]]


def test_a_compacted_history_is_a_conversation_of_its_own() -> None:
    session = Session().turn(["U q"], [1], "A x", [10]).turn(["U summary"], [5, 6], "A y", [11])

    assert shown(session.samples()) == [([1, 10], [1]), ([5, 6, 11], [1])]


def test_a_short_answer_that_is_replayed_in_other_words_is_given_up_for_one_sample() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x ", "T a"], [1, 10, 2], "A y", [11])

    [sample] = session.samples()

    assert (sample.tokens, sample.loss_mask, sample.response_length) == ([1, 10, 2, 11], [1], 1)


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_long_answer_that_is_replayed_in_other_words_is_kept_as_a_branch(threshold: int) -> None:
    session = Session(fork_threshold_tokens=threshold).turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x ", "T a"], [1, 10, 2], "A y", [11])

    assert shown(session.samples()) == [([1, 10], [1]), ([1, 10, 2, 11], [1])]


def test_an_answer_that_was_gone_on_from_is_not_rewritten() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x", "T a"], [1, 10, 2], "A y", [11])
    session.turn(["U q", "A x ", "T a"], [1, 9, 2], "A z", [12])

    assert shown(session.samples()) == [([1, 10, 2, 11], [1, 0, 1]), ([1, 9, 2, 12], [1])]


def test_a_replay_that_could_be_of_two_answers_begins_a_branch(caplog: pytest.LogCaptureFixture) -> None:
    session = Session().turn(["U q"], [1], "A x", [10]).turn(["U q"], [1], "A y", [11])
    session.turn(["U q", "A z", "T a"], [1, 9, 2], "A w", [12])

    assert shown(session.samples()) == [([1, 10], [1]), ([1, 11], [1]), ([1, 9, 2, 12], [1])]
    assert "equals none of 2 answers" in caplog.text


def test_equal_answers_to_one_prompt_are_two_leaves_and_the_first_is_gone_on_from() -> None:
    session = Session().turn(["U q"], [1], "A x", [10]).turn(["U q"], [1], "A x", [11])
    session.turn(["U q", "A x", "T a"], [1, 10, 2], "A y", [12])

    assert shown(session.samples()) == [([1, 10, 2, 12], [1, 0, 1]), ([1, 11], [1])]


def test_messages_that_only_the_agent_wrote_are_masked() -> None:
    session = Session().turn(["U q", "A example", "U r"], [1, 2, 3], "A x", [10])

    assert shown(session.samples()) == [([1, 2, 3, 10], [1])]


def test_a_turn_without_prompt_messages_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert Session().turn([], [1], "A x", [10]).samples() == []
    assert "without prompt messages" in caplog.text


def test_log_probs_of_another_length_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"\(1, 2\)"):
        Session().turn(["U q"], [1], "A x", [10, 11], log_probs=[-1.0])


def test_a_turn_without_log_probs_has_zeros() -> None:
    [sample] = Session().turn(["U q"], [1], "A x", [10, 11], log_probs=None).samples()

    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1], [0.0, 0.0])


def test_an_answer_of_no_token_alone_makes_no_sample() -> None:
    assert Session().turn(["U q"], [1], "A ", [], finish="length").samples() == []


def test_an_answer_of_no_token_ends_a_sample_as_truncated() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    session.turn(["U q", "A x", "T a"], [1, 10, 2], "A ", [], finish="length")

    [sample] = session.samples()

    assert (sample.tokens, sample.loss_mask, sample.status) == ([1, 10, 2], [1, 0], Status.TRUNCATED)
    assert sample.metadata["truncated"] is True


@pytest.mark.parametrize(
    ("limit", "tokens", "mask"),
    [
        (6, [1, 2, 10, 11, 3, 12], [1, 1, 0, 1]),
        (5, [1, 2, 10, 11, 3], [1, 1, 0]),
        (3, [1, 2, 10], [1]),
    ],
)
def test_a_sample_that_is_too_long_is_cut_on_the_right(limit: int, tokens: list[int], mask: list[int]) -> None:
    [sample] = two_turns([1, 2, 10, 11, 3]).samples(max_sample_tokens=limit)

    assert shown([sample]) == [(tokens, mask)]
    assert sample.status == (Status.COMPLETED if limit == 6 else Status.TRUNCATED)


def test_a_sample_of_which_nothing_trained_is_left_is_dropped() -> None:
    assert two_turns([1, 2, 10, 11, 3]).samples(max_sample_tokens=2) == []
    assert two_turns([1, 2, 10, 99, 3]).samples(max_sample_tokens=5) == []


def test_what_is_asked_of_the_base_sample_is_carried() -> None:
    base = Sample(index=4, group_index=2, prompt="p", label="l", prompt_id="h", metadata={"rm_type": "math", "a": 1})
    session = Session().turn(["U q"], [1], "A x", [10])

    [sample] = session.samples(base_sample=base, extra_metadata={"a": 2})

    assert (sample.index, sample.group_index, sample.rollout_id, sample.prompt, sample.label) == (4, 2, 4, "p", "l")
    assert (sample.prompt_id, sample.reward, sample.status) == ("h", 1.0, Status.COMPLETED)
    assert sample.metadata == {
        "rm_type": "math",
        "a": 2,
        "truncated": False,
        "use_tool": False,
        "ill_formed": False,
        "segment": "final",
    }


def test_the_id_of_the_execution_is_the_bases_own_where_it_has_one() -> None:
    [sample] = Session().turn(["U q"], [1], "A x", [10]).samples(base_sample=Sample(index=4, rollout_id=0))

    assert sample.rollout_id == 0


def test_what_happened_in_a_conversation_is_told_of_each_of_its_samples() -> None:
    session = Session(fork_threshold_tokens=0).turn(["U q"], [1], "A x", [10], ill_formed=True)
    session.turn(["U q", "A x", "U r"], [9], "A y", [11], finish="length")

    samples = session.samples()

    assert [sample.metadata["truncated"] for sample in samples] == [True, True]
    assert [sample.metadata["ill_formed"] for sample in samples] == [True, True]
    assert [sample.status for sample in samples] == [Status.COMPLETED, Status.TRUNCATED]


def test_a_turn_that_calls_a_tool_is_told_of() -> None:
    session = Session()
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    session.manager.record_turn("s", TurnRecord([1], [10], "stop", [-1.0]), [{"role": "user", "content": "q"}], call)

    assert [sample.metadata["use_tool"] for sample in session.samples()] == [True]


def test_every_sample_has_the_whole_reward_or_its_share() -> None:
    def forked() -> Session:
        return two_turns([1, 2, 10, 99, 3], fork_threshold_tokens=0)

    assert [sample.reward for sample in forked().samples()] == [1.0, 1.0]
    assert [sample.reward for sample in forked().samples(split=True)] == [0.5, 0.5]
    assert [sample.reward for sample in forked().samples(reward=None, split=True)] == [None, None]
    scores = [sample.reward for sample in forked().samples(reward={"score": 3, "ok": True}, split=True)]
    assert scores == [{"score": 1.5, "ok": True}] * 2


def test_a_session_gives_its_samples_once_and_a_dropped_one_none() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])

    assert len(session.samples()) == 1
    assert session.samples() == []
    session.turn(["U q"], [1], "A x", [10]).manager.drop_session("s")
    assert session.samples() == []


def test_sessions_do_not_see_each_other() -> None:
    session = Session().turn(["U q"], [1], "A x", [10])
    record = TurnRecord([1], [11], "stop", [-1.0])
    session.manager.record_turn("t", record, [{"role": "user", "content": "q"}], {"role": "assistant", "content": "x"})

    assert shown(session.samples()) == [([1, 10], [1])]
