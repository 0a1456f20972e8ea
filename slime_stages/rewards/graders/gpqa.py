"""Reward type `gpqa`: the letter that a response settles on, against the right one of a multiple choice.

Metadata may have `choices`, `valid_letters`, `correct_letter` and `correct_answer`; the label is a letter, an index or
a choice's text. Where no letter can be told on one of the sides, the right answer's text is looked for in the response.

Unlike slime, the letter must stand alone: slime reads "The answer is (B)" as I, the first letter of "is", where ten
letters are allowed. The "I" of "I think" is no letter either, and a question without a right answer is an error.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

from slime_stages.errors import DataError

_DEFAULT_LETTERS = "ABCDEFGHIJ"
# An answer may be bracketed or dressed: (B), **B**, $B$, \boxed{\text{B}}.
_DRESS = r"(?:\\(?:boxed|text|textbf|mathrm)\{|[\s(\[{*_$\"'`]){0,12}"
_ALONE = r"(?![A-Za-z0-9'’])(?!(?<=I)\s+[a-z])"
_LETTER = rf"(?<![A-Za-z])([A-Za-z]){_ALONE}"
_STATEMENTS = [
    re.compile(pattern)
    for pattern in [
        rf"(?i:answer|option|choice)\s*(?i:is\b|:)?{_DRESS}:?{_DRESS}{_LETTER}",
        rf"{_LETTER}[)\]}}*_$\"'`]*\s*(?i:is\s+(?:the\s+)?correct)",
    ]
]
_CAPITAL = re.compile(rf"(?<![A-Za-z0-9])([A-Z]){_ALONE}")
_ARTICLE = re.compile(r"a\s+[a-z]")


def grade_gpqa(response: str, label: Any, metadata: dict[str, Any]) -> float:
    """1.0 if the response chooses what is right, else 0.0; DataError if nothing says what is right."""
    choices = _choices(metadata)
    letters = _valid_letters(metadata, choices)
    answer = response.rpartition("</think>")[2]
    right = _right_letter(label, metadata, choices, letters)
    texts = _right_texts(label, metadata, choices, letters, right)
    if right is None and not texts:
        raise DataError(
            f"reward type `gpqa` needs a label that is a letter, an index or a choice's text, not {label!r}",
            hint='check --label-key, or add "correct_letter" to the metadata',
        )
    chosen = find_letter(answer, letters)
    if chosen is not None and right is not None:
        return float(chosen == right)
    plain = f" {_plain(answer)} "
    return float(any(f" {text} " in plain for text in texts))


def find_letter(answer: str, letters: Sequence[str]) -> str | None:
    """The letter that the text names as its answer, else the last capital letter that stands alone."""
    for pattern in _STATEMENTS:
        for match in pattern.finditer(answer):
            if match[1].upper() in letters and not _ARTICLE.match(answer, match.start(1)):
                return match[1].upper()
    capitals = [letter for letter in _CAPITAL.findall(answer) if letter in letters]
    return capitals[-1] if capitals else None


def _choices(metadata: dict[str, Any]) -> list[str]:
    given = metadata.get("choices") or []
    return [str(choice) for choice in (given.values() if isinstance(given, dict) else given)]


def _valid_letters(metadata: dict[str, Any], choices: Sequence[str]) -> list[str]:
    given = metadata.get("valid_letters")
    return [str(letter).upper() for letter in given or string.ascii_uppercase[: len(choices)] or _DEFAULT_LETTERS]


def _right_letter(label: Any, metadata: dict[str, Any], choices: Sequence[str], letters: Sequence[str]) -> str | None:
    if letter := metadata.get("correct_letter"):
        return str(letter).strip().upper()
    if isinstance(label, int | float):
        return letters[int(label)] if 0 <= label < len(letters) else None
    text = str(label or "").strip()
    if len(text) == 1 and text.upper() in letters:
        return text.upper()
    if not text:
        return None
    plain = [_plain(choice) for choice in choices[: len(letters)]]
    return letters[plain.index(_plain(text))] if _plain(text) in plain else None


def _right_texts(
    label: Any, metadata: dict[str, Any], choices: Sequence[str], letters: Sequence[str], right: str | None
) -> list[str]:
    """What the right answer may be called, plainly; a bare letter is no name."""

    def named() -> Iterator[Any]:
        if right in letters and letters.index(str(right)) < len(choices):
            yield choices[letters.index(str(right))]
        yield metadata.get("correct_answer")
        yield metadata.get("answer_text")
        if isinstance(label, str) and label.strip().upper() not in letters:
            yield label

    return [plain for plain in (_plain(str(text)) for text in named() if text is not None) if plain]


def _plain(text: str) -> str:
    """Lower case, words and numbers only."""
    return " ".join(re.sub(r"[^\w.+\-]+|\.(?!\d)", " ", text.lower()).split())
