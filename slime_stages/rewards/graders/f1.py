"""Reward type `f1`: overlap of words between response and label, as SQuAD scores answers."""

from __future__ import annotations

import re
import string
from collections import Counter

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ALL_OR_NOTHING = {"yes", "no", "noanswer"}


def grade_f1(response: str | None, label: object) -> float:
    """Harmonic mean of the precision and the recall of words; 0 where one side is a verdict and the other is not."""
    if response is None:
        return 0.0
    given, truth = normalise(response), normalise(str(label))
    if given != truth and _ALL_OR_NOTHING & {given, truth}:
        return 0.0
    given_words, truth_words = given.split(), truth.split()
    shared = (Counter(given_words) & Counter(truth_words)).total()
    return 2 * shared / (len(given_words) + len(truth_words)) if shared else 0.0


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus space."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
