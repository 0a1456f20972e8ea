r"""Reward type `dapo`: the answer behind the last `Answer:` (or, strictly, in the last box) as DAPO scores it.

The reward is a dict (`score` +1 or -1, `acc`, `pred`), so training needs `--reward-key score`.

Unlike slime, a truth that is no integer is compared as text: slime raises on `1/2` and cuts `1.5` down to `1`.
"""

from __future__ import annotations

import re
from typing import TypedDict

from slime_stages.rewards.graders.boxed import last_boxed

_LAST_CHARACTERS = 300
_LAST_CHARACTERS_STRICT = 100
_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")

# The lists and their order are those of the Minerva paper, which every DAPO result is measured with.
_SUBSTITUTIONS = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
_REMOVED = [
    *["square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"],
    *["feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"],
    *["childrentickets", "multiples"],
    *["\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"],
    *["\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots", "<|im_end|>", "<|endoftext|>"],
]
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"(.*?)\$(.*?)\$(.*)", r"$\2$"),
        (r"\\text\{(.*?)\}", r"\1"),
        (r"\\textbf\{(.*?)\}", r"\1"),
        (r"\\overline\{(.*?)\}", r"\1"),
        (r"\\boxed\{(.*)\}", r"\1"),
        (r"frac([^{])(.)", r"frac{\1}{\2}"),
        (r"sqrt([^{])", r"sqrt{\1}"),
        (r"\$", ""),
    ]
]


class DapoReward(TypedDict):
    """What `dapo` hands back for one response."""

    score: float
    """+1.0 right, -1.0 wrong."""

    acc: bool
    """Whether the answer is right."""

    pred: str | None
    """The answer as compared; `[INVALID]` (None in strict mode) if there is none."""


def grade_dapo(response: str, label: object, *, strict_box: bool = False) -> DapoReward:
    r"""Score the end of a response; with `strict_box` only the exact text of a late `\boxed{…}` counts."""
    end = response[-_LAST_CHARACTERS:]
    if strict_box:
        prediction = last_boxed(end[-_LAST_CHARACTERS_STRICT:])
        is_right = prediction == str(label)
    else:
        answers = _ANSWER.findall(end)
        prediction = normalise(answers[-1]) if answers else "[INVALID]"
        is_right = prediction == _as_integer_text(normalise(str(label)))
    return DapoReward(score=1.0 if is_right else -1.0, acc=is_right, pred=prediction)


def normalise(answer: str) -> str:
    """The bare answer: what follows the last `=`, without units, filler words and LaTeX dressing."""
    answer = answer.split("=")[-1]
    for before, after in _SUBSTITUTIONS:
        answer = answer.replace(before, after)
    for expression in _REMOVED:
        answer = answer.replace(expression, "")
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


def _as_integer_text(truth: str) -> str:
    try:
        number = float(truth)
    except ValueError:
        return truth
    if not number.is_integer():
        return truth
    return str(int(truth)) if re.fullmatch(r"[+-]?\d+", truth) else str(int(number))
