r"""Mathematical equality of LaTeX answers: the same number, interval or expression, whatever its form.

What a model wrote is only evaluated if it is short of letters, free of towers of powers and made of arithmetic
characters, with sympy's names and nothing else in reach. `is_equal` may still run for very long (`simplify`
has no bound): call it where it can be killed.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_UNITS = "degree|centimeter|cm|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard"
_TEXT = re.compile(r"\\text\{(.+?)\}")
_WORDS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\?[%$]", ""),
        (r" (or|and) ", " , "),
        ("million", "*10^6"),
        ("billion", "*10^9"),
        ("trillion", "*10^12"),
        (rf"({_UNITS})(es)?s? *(\^[0-9]+)?", ""),
        (r"\^ *(\{\\circ\}|\\circ)", ""),
        (r"^\{(.*)\}$", r"\1"),
        (r",\\! *", ""),
    ]
]
_SIGNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"- *", "-"),
        (r"([0-9]) +([0-9])", r"\1+\2"),  # a mixed number
        (r"[ {}]", ""),
    ]
]
_SYMBOLS = str.maketrans({"√": "sqrt", "π": "pi", "∞": "inf", "∪": "U", "·": "*", "×": "*"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PLAIN_FRACTION = re.compile(r"-?[0-9]+/0*[1-9][0-9]*")
_LIST = re.compile(r"[(\[]([^()\[\]]+)[)\]]")
_ARITHMETIC = re.compile(r"[0-9a-z+\-*/^().!]+")
_LONGEST = 5000
"""Characters of an answer that is worth reading; longer ones have been compared as text."""
_POWERS_TOO_FAR = re.compile(r"\^\(|\^[0-9][0-9]|\^[0-9]\^")


def is_equal(given: str, truth: str) -> bool:
    """Whether `given` is `truth`, element by element where the truth is a tuple or an interval.

    A fraction of integers must be reduced as the truth is, and an integer truth wants an integer.
    """
    if max(len(given), len(truth)) > _LONGEST:
        return False
    given, truth = normalise(given), normalise(truth)
    if given == truth:
        return True
    if not given:
        return False
    given_parts, truth_parts = split_list(given), split_list(truth)
    if len(given_parts) != len(truth_parts):
        return False
    if len(truth_parts) > 1 and (given[0], given[-1]) != (truth[0], truth[-1]):
        return False
    return all(map(_is_equal_part, given_parts, truth_parts))


def normalise(answer: str) -> str:
    """A lower-case, unit-free plain-text form of a LaTeX answer, for comparing and for sympy."""
    if inner := _TEXT.fullmatch(answer):
        answer = inner[1]
    for pattern, replacement in _WORDS:
        answer = pattern.sub(replacement, answer)
    if "\\" in answer:
        answer = _latex_to_text(answer)
    for pattern, replacement in _SIGNS:
        answer = pattern.sub(replacement, answer)
    answer = answer.lower()
    integer = _as_integer(answer)
    return answer if integer is None else str(integer)


def split_list(answer: str) -> list[str]:
    """The elements of a tuple or interval such as `[1,2)`; anything else is one element."""
    answer = _THOUSANDS.sub("", answer)
    if inner := _LIST.fullmatch(answer):
        return [element.strip() for element in inner[1].split(",")]
    return [answer] if answer else []


def is_safe_to_evaluate(expression: str) -> bool:
    """Whether sympy may see it: at most two unknowns, no tower of powers, nothing but arithmetic."""
    letters = set(re.findall("[a-z]", expression.replace("sqrt", "").replace("frac", "")))
    return bool(_ARITHMETIC.fullmatch(expression)) and len(letters) <= 2 and not _POWERS_TOO_FAR.search(expression)


def _is_equal_part(given: str, truth: str) -> bool:
    if _PLAIN_FRACTION.fullmatch(given) and _PLAIN_FRACTION.fullmatch(truth):
        return given == truth
    given_integer, truth_integer = _as_integer(given), _as_integer(truth)
    if given_integer is not None or truth_integer is not None:
        return given_integer == truth_integer
    difference = f"({truth})-({given})".replace("**", "^")
    return is_safe_to_evaluate(difference) and _is_zero(difference.replace("^", "**"))


def _is_zero(expression: str) -> bool:
    import sympy
    from sympy.parsing import sympy_parser

    transformations = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    try:
        parsed = sympy_parser.parse_expr(expression, transformations=transformations, global_dict=_sympy_names())
        return bool(sympy.simplify(parsed) == 0)
    except Exception:  # what sympy cannot read, it raises anything on: such an answer is not this truth
        return False


@functools.cache
def _sympy_names() -> dict[str, Any]:
    """The only names an answer reaches: what sympy's parser emits, roots, factorials and pi; no builtins."""
    import sympy

    names = ("Symbol", "Integer", "Float", "Rational", "Function", "factorial", "factorial2", "sqrt", "pi")
    return {name: getattr(sympy, name) for name in names} | {"__builtins__": {}}


def _latex_to_text(answer: str) -> str:
    """LaTeX as plain text: `2\\frac12` becomes `2 1/2`; a fraction's compound sides get parentheses."""
    answer = re.sub(r"\\[td]frac", r"\\frac", answer).replace("\\frac", " \\frac")
    answer = re.sub(r"\\sqrt\[(\w+)\]", r"root\1\\sqrt", answer)
    return str(_latex_reader().latex_to_text(answer)).translate(_SYMBOLS).strip()


@functools.cache
def _latex_reader() -> Any:
    from pylatexenc import latex2text

    context = latex2text.get_default_latex_context_db()
    fraction = latex2text.MacroTextSpec("frac", simplify_repl=_write_fraction)
    context.add_context_category("slime-stages", prepend=True, macros=[fraction])
    return latex2text.LatexNodes2Text(latex_context=context)


def _write_fraction(node: Any, l2tobj: Any) -> str:
    sides = [l2tobj.nodelist_to_text([side]) for side in node.nodeargs]
    return "/".join(side if re.fullmatch(r"-?[\w.]*|√\(\w+\)", side) else f"({side})" for side in sides)


def _as_integer(text: str) -> int | None:
    """The integer that `1,000`, `3.0` or `-7` spell, else None."""
    text = _THOUSANDS.sub("", text)
    try:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        number = float(text)
        nearest = round(number)
    except (ValueError, OverflowError):
        return None
    return nearest if abs(number - nearest) <= 1e-7 else None
