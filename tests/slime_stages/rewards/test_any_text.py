"""No text that a model may write crashes or hangs the scoring: each is right, wrong, or out of time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_stages.rewards.pool import RewardPool, RewardTask
from slime_stages.sample import Sample
from tests.slime_stages.rewards.pool_tasks import open_pool

TYPES = ("math", "dapo", "deepscaler", "f1", "gpqa", "math_verify", "boxed_f1", "boxed_gpqa", "boxed_dapo")
LABELS = ("\\frac{1}{2}", "x+1", "(1,2]", "B", "the cat")
FRAGMENTS = [
    *["\\boxed{", "\\boxed", "\\fbox{", "\\frac{", "\\frac", "\\dfrac12", "\\sqrt[", "\\sqrt{", "\\text{", "\\left("],
    *[
        "\\right)",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "$",
        "$$",
        "^",
        "_",
    ],
    *[
        "**",
        "!",
        "!!",
        "%",
        "&",
        "#",
        "~",
        "=",
        "<",
        ",",
        ";",
        ".",
        "|",
        "-",
        "+",
        "*",
        "/",
        "1",
        "99",
        "1e999",
        "0x1f",
    ],
    *[
        "x",
        "pi",
        "inf",
        "oo",
        "nan",
        "lambda",
        "import os",
        "__class__",
        "None",
        " and ",
        " or ",
        "Answer:",
        "answer is",
    ],
    *[
        "</think>",
        "###Response",
        "million",
        "degrees",
        "cm",
        "\n",
        "\t",
        "\x00",
        "\u202e",
        "\ud800",
        "é",
        "√",
        "∪",
        "𝟙",
    ],
]

pieces = st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8), st.integers().map(str), st.floats().map(str))
soup = st.lists(pieces, max_size=25).map("".join)
boxed = soup.map(lambda text: f"</think> Answer: \\boxed{{{text}}}")
nested = st.builds(
    lambda start, end, depth: start * depth + "1" + end * depth,
    st.sampled_from(["{", "(", "\\boxed{", "\\frac{", "\\sqrt{", "-", "2^", "2^{", "\\text{", "[", "sqrt("]),
    st.sampled_from(["", "}", ")", "]"]),
    st.integers(1, 3000),
)
texts = st.one_of(soup, boxed, nested, nested.map(lambda text: f"</think>\\boxed{{{text}}}"))


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    """The type that takes longest to import is the run's: workers that are replaced then begin with it."""
    with open_pool(args={"rm_type": "math_verify"}, timeout_seconds=2.0, memory_bytes=2 << 30) as pool:
        yield pool


def check(pool: RewardPool, responses: list[str]) -> None:
    tasks = [
        RewardTask(key=f"{row} {reward_type}", samples=[sample.to_dict()], is_list=False)
        for row, response in enumerate(responses)
        for reward_type in TYPES
        for sample in [Sample(response=response, label=LABELS[row % len(LABELS)], metadata={"rm_type": reward_type})]
    ]

    outcomes = {outcome.key: outcome for outcome in pool.score(tasks)}

    assert outcomes.keys() == {task.key for task in tasks}
    for outcome in outcomes.values():
        assert outcome.status.value in ("scored", "timeout", "oom"), outcome
        assert outcome.rewards != [None] or outcome.status.value != "scored"
        assert outcome.seconds < 4.0


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(st.lists(texts, min_size=5, max_size=5))
def test_any_text_gets_a_verdict_or_runs_out_of_time(pool: RewardPool, responses: list[str]) -> None:
    check(pool, responses)


@pytest.mark.parametrize("piece", ["a", "{", "\\boxed{", "1,", "𝟙"])
def test_a_text_of_a_megabyte_does_too(pool: RewardPool, piece: str) -> None:
    long = piece * (1_000_000 // len(piece))

    check(pool, [long, f"\\boxed{{{long}}}"])


def test_an_answer_of_a_megabyte_is_wrong_and_not_null(pool: RewardPool) -> None:
    response = f"\\boxed{{{'a' * 1_000_000}}}"
    sample = Sample(response=response, label="a", metadata={"rm_type": "math"})

    [outcome] = pool.score([RewardTask(key="0", samples=[sample.to_dict()], is_list=False)])

    assert outcome.rewards == [0.0]
