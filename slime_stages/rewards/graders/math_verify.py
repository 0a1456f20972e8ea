r"""Reward type `math_verify`: the verdict of the library of that name on the response's last answer.

It reads more than `math` does (sets, matrices, inequalities, answers outside a box) and is more lenient: unreduced
fractions and roundings pass. Its own time limits use signals, which stop no C code; here the worker is killed instead.
"""

from __future__ import annotations

import logging
from typing import Any

from slime_stages.errors import DataError, MissingInputError


def grade_math_verify(response: str, label: object) -> int:
    """1 if the library takes the response's answer for the label, else 0; DataError for a label that it cannot read."""
    try:
        import math_verify
    except ImportError as error:
        raise MissingInputError(
            "reward type `math_verify` needs the package math-verify", hint="pip install 'math-verify[antlr4_13_2]'"
        ) from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of time limits that are off
    truth = _read(math_verify, _as_latex(label))
    if not truth:
        raise DataError(
            f"reward type `math_verify` cannot read the label {label!r}", hint="check --label-key and the prompt file"
        )
    answer = _read(math_verify, response)
    return int(math_verify.verify(truth, answer, timeout_seconds=None))


def _as_latex(label: object) -> str:
    text = "" if label is None else str(label).strip()
    return text if not text or "$" in text or "\\boxed" in text else f"\\boxed{{{text}}}"


def _read(math_verify: Any, text: str) -> list[Any]:
    return list(math_verify.parse(text, parsing_timeout=None))
