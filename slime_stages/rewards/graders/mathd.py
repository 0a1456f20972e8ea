r"""Textual equality of LaTeX answers: two spellings of one answer become the same string.

The rules are those of the MATH benchmark: each is blunt, and safe because both sides go through it.
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\text\{(.+?)\}")
_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\n|\\!", ""),
        (r"\\\\", r"\\"),
        (r"\\[td]frac", r"\\frac"),
        (r"\\left|\\right", ""),
        (r"\^(\{\\circ\}|\\circ)", ""),
        (r"\\\$", ""),
        (r"\\text\{ .*", ""),  # a unit behind the number
        (r"\\?%", ""),
        (r"(^|[ {])\.", r"\g<1>0."),
        (r"^[^=]{0,2}=([^=]*)$", r"\1"),  # `x = 3` names its unknown
        (r"\\sqrt([^{\[])", r"\\sqrt{\1}"),
        (r" ", ""),
        (r"\\frac([^{])([^{])", r"\\frac{\1}{\2}"),
        (r"\\frac([^{])\{", r"\\frac{\1}{"),
        (r"^0\.5$", r"\\frac{1}{2}"),
        (r"^(0|-?[1-9]\d*)/(0|-?[1-9]\d*)$", r"\\frac{\1}{\2}"),
    ]
]


def is_same_text(given: str, truth: str) -> bool:
    """Whether both answers read the same once their spelling is levelled."""
    return level_spelling(given) == level_spelling(truth)


def level_spelling(answer: str) -> str:
    r"""One spelling for `\dfrac12`, `\frac{1}{2}`, `1/2` and `0.5`; units, degrees and spacing go."""
    answer = answer.strip()
    if inner := _TEXT.fullmatch(answer):
        answer = inner[1].strip()
    for pattern, replacement in _RULES:
        answer = pattern.sub(replacement, answer)
    return answer
