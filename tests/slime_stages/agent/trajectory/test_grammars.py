"""Answers that a grammar held: what it left no choice about is not trained on."""

from __future__ import annotations

from slime_stages.agent.trajectory import TrajectoryManager, TurnRecord
from slime_stages.sample import Sample


def samples_of(*turns: TurnRecord) -> list[Sample]:
    manager = TrajectoryManager()
    for number, turn in enumerate(turns):
        history = [{"role": "user", "content": str(each)} for each in range(number + 1)]
        manager.record_turn("s", turn, history, {"role": "assistant", "content": "a"})
    return manager.get_trajectory("s", base_sample=Sample(index=0))


def test_a_token_of_log_prob_0_was_the_grammars() -> None:
    [sample] = samples_of(TurnRecord([1, 2], [10, 11, 12], "stop", [0.0, -0.5, -0.0], is_constrained=True))

    assert (sample.tokens, sample.loss_mask) == ([1, 2, 10, 11, 12], [0, 1, 0])
    assert sample.rollout_log_probs == [0.0, -0.5, 0.0]
    assert sample.metadata["constrained"] is True


def test_without_a_grammar_it_was_the_models() -> None:
    [sample] = samples_of(TurnRecord([1], [10], "stop", [0.0]))

    assert sample.loss_mask == [1]
    assert "constrained" not in sample.metadata


def test_an_answer_that_was_the_grammars_alone_trains_nothing() -> None:
    assert samples_of(TurnRecord([1], [10, 11], "stop", [0.0, 0.0], is_constrained=True)) == []
