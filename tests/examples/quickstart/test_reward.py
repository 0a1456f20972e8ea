from __future__ import annotations

import pytest

from examples.quickstart.reward import reward
from slime_stages.sample import Sample


@pytest.mark.parametrize(
    ("response", "label", "expected"),
    [
        ("3 + 4 = 7", "7", 1.0),
        ("7", "7", 1.0),
        ("The answer is -4.<|im_end|>", "-4", 1.0),
        ("The answer is −4.", "-4", 1.0),
        ("7-3", "3", 1.0),
        ("7-3", "-3", 0.0),
        ("7 = 3 + 4", "7", 0.0),
        ("17", "7", 0.0),
        ("seven", "7", 0.0),
        ("", "0", 0.0),
        ("9" * 5000, "9", 0.0),
    ],
)
async def test_the_last_integer_of_the_response_decides(response: str, label: str, expected: float) -> None:
    assert await reward(None, Sample(response=response, label=label)) == expected
