from __future__ import annotations

import pytest

from slime_stages.rewards.graders.f1 import grade_f1


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("The cat, sat!", "a cat sat", 1.0),
        ("cat sat down", "cat", 0.5),
        ("cat cat", "cat dog", 0.5),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("yes", "Yes.", 1.0),
        ("yes it is", "yes", 0.0),
        ("no", "noanswer", 0.0),
        ("7", 7, 1.0),
        (None, "cat", 0.0),
    ],
)
def test_words_shared_are_weighed_as_squad_weighs_them(response: str | None, label: object, reward: float) -> None:
    assert grade_f1(response, label) == reward
