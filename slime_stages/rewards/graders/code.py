"""Reward type `code`: 1.0 if the program in the response's last code block passes all tests, else 0.0.

Tests are `metadata["tests"]`, or the label, as JSON or as an object:

- `{"inputs": [...], "outputs": [...]}` or `[{"input": ..., "output": ...}]`: standard input and expected output;
- the same with `"fn_name"`: arguments and expected result of a function, or of a method of `Solution`;
- Python source, or a list of statements such as `assert add(1, 2) == 3`: run after the program, in its names.

A program that fails, hangs or takes too much is a wrong answer. One that ends before the end of its tests fails them.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slime_stages.errors import DataError
from slime_stages.rewards.sandbox import Limits, run_python

_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")
# The token is read when all tests have passed: a program that ends early cannot print it by accident.
_UNIT = """
import os, sys, types
module = sys.modules["program"] = types.ModuleType("program")
exec(compile({program!r}, "program.py", "exec"), module.__dict__)
exec(compile({tests!r}, "tests.py", "exec"), module.__dict__)
sys.stdout.flush()
os.write(1, b"\\n" + os.read(0, 100))
"""
_CALLS = """
import json as _json
_found = globals().get({name!r}) or getattr(Solution(), {name!r})
for _given, _wanted in _json.loads({cases!r}):
    _result = _json.loads(_json.dumps(_found(*_given), default=list))
    assert _result == _wanted or [_result] == _wanted, (_given, _result, _wanted)
"""


def grade_code(response: str, label: Any, metadata: Mapping[str, Any], limits: Limits) -> float:
    """1.0 if all tests pass within `limits.seconds` together; DataError for tests that cannot be read."""
    tests = read_tests(metadata.get("tests", label))
    program = find_program(response)
    if program is None:
        return 0.0
    if isinstance(tests, str):
        return float(_passes_units(program, tests, limits))
    deadline = time.monotonic() + limits.seconds
    return float(all(_passes(program, given, wanted, limits, deadline) for given, wanted in tests))


def find_program(response: str) -> str | None:
    """What stands in the last block of Python, or of no language."""
    blocks = _BLOCK.findall(response.rpartition("</think>")[2])
    programs = [source for language, source in blocks if language.lower() in _LANGUAGES]
    return programs[-1] if programs else None


def read_tests(given: Any) -> str | list[tuple[str, str]]:
    """Tests as Python source, or as pairs of input and output."""
    tests = _decoded(given)
    if isinstance(tests, str) and tests.strip():
        return tests
    if isinstance(tests, list) and tests and all(isinstance(each, str) for each in tests):
        return "\n".join(tests)
    if isinstance(tests, list) and tests and all(isinstance(each, Mapping) for each in tests):
        return [(_text(each.get("input")), _text(each.get("output"))) for each in tests]
    if isinstance(tests, Mapping) and (pairs := _pairs(tests)):
        if name := tests.get("fn_name"):
            # Arguments are a list; where that is JSON in text, so is the result.
            cases = [[_decoded(a), _decoded(b) if isinstance(a, str) else b] for a, b in pairs]
            return _CALLS.format(name=str(name), cases=json.dumps(cases))
        return [(_text(a), _text(b)) for a, b in pairs]
    raise DataError(
        f"reward type `code` cannot read the tests {str(given)[:200]!r}",
        hint='a label such as {"inputs": ["1 2"], "outputs": ["3"]}, or Python statements',
    )


def is_same_output(given: str, wanted: str) -> bool:
    """Whether two outputs are the same but for space at the ends of lines and of the text."""
    return _lines(given) == _lines(wanted)


def _pairs(tests: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        return []
    return list(zip(inputs, outputs, strict=True))


def _passes(program: str, given: str, wanted: str, limits: Limits, deadline: float) -> bool:
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    here = Limits(seconds=left, memory_bytes=limits.memory_bytes, isolation=limits.isolation)
    ended = run_python(program, given.encode(errors="replace"), here)
    return ended.code == 0 and is_same_output(ended.stdout.decode(errors="replace"), wanted)


def _passes_units(program: str, tests: str, limits: Limits) -> bool:
    token = secrets.token_hex(16).encode()
    ended = run_python(_UNIT.format(program=program, tests=tests), token, limits)
    return ended.code == 0 and ended.stdout.endswith(b"\n" + token)


def _decoded(value: Any) -> Any:
    """Data sets keep tests as JSON in text; what is no JSON is text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _text(value: Any) -> str:
    """A list is its lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
