from __future__ import annotations

import json
from typing import Any

import pytest

from slime_stages.errors import DataError
from slime_stages.rewards.graders.code import find_program, grade_code, is_same_output, read_tests
from slime_stages.rewards.sandbox import Limits

LIMITS = Limits(seconds=10.0, memory_bytes=1 << 30, isolation="namespaces")
SUMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
ADD = ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]


def block(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("print(sum(map(int, input().split())))", 1.0),
        ("print(3)", 0.0),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", 0.0),
        ("if __name__ == '__main__':\n    a, b = map(int, input().split())\n    print(f'{a + b}  ')", 1.0),
    ],
)
def test_a_program_reads_the_input_and_must_print_the_output(program: str, reward: float) -> None:
    assert grade_code(block(program), SUMS, {}, LIMITS) == reward


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return 3", 0.0),
        ("def add(a, b:", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("raise SystemExit(0)", 0.0),
        ("def add(a, b):\n    import os\n    os._exit(0)", 0.0),
        ("print('hello')\ndef add(a, b): return a + b\nif __name__ == '__main__': input()", 1.0),
    ],
)
def test_unit_tests_must_be_reached_and_pass(program: str, reward: float) -> None:
    assert grade_code(block(program), ADD, {}, LIMITS) == reward


def test_a_function_or_a_method_of_solution_is_called_by_name() -> None:
    tests = json.dumps({"fn_name": "pair", "inputs": [[1], [2]], "outputs": [[1, 1], [[2, 2]]]})

    assert grade_code(block("def pair(a): return a, a"), tests, {}, LIMITS) == 1.0
    assert grade_code(block("class Solution:\n    def pair(self, a): return [a, a]"), tests, {}, LIMITS) == 1.0
    assert grade_code(block("def pair(a): return [a]"), tests, {}, LIMITS) == 0.0


def test_a_program_that_hangs_or_eats_memory_is_a_wrong_answer() -> None:
    short = Limits(seconds=1.0, memory_bytes=1 << 30, isolation="namespaces")

    assert grade_code(block("while True: pass"), SUMS, {}, short) == 0.0
    assert grade_code(block("x = b'1' * (8 << 30)\nprint(3)"), SUMS, {}, LIMITS) == 0.0


def test_the_last_block_of_python_behind_the_thinking_counts() -> None:
    assert find_program("```python\na\n```\n```py\nb\n```\n```bash\nc\n```") == "b\n"
    assert find_program("```\na\n```") == "a\n"
    assert find_program("```python\na\n```</think> nothing") is None
    assert grade_code("print(3)", SUMS, {}, LIMITS) == 0.0


@pytest.mark.parametrize(
    ("given", "tests"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, [("1", "2")]),
        ('{"inputs": ["1"], "outputs": ["2"]}', [("1", "2")]),
        ([{"input": "1", "output": "2"}], [("1", "2")]),
        ({"inputs": [["1", "2"]], "outputs": [3]}, [("1\n2", "3")]),
        (["assert a", "assert b"], "assert a\nassert b"),
        ("assert a", "assert a"),
    ],
)
def test_tests_come_as_json_as_objects_or_as_python(given: Any, tests: Any) -> None:
    assert read_tests(given) == tests


@pytest.mark.parametrize("given", [None, "", 3, [], {}, {"inputs": ["1"], "outputs": []}, [1]])
def test_tests_that_cannot_be_read_are_an_error_and_no_zero(given: Any) -> None:
    with pytest.raises(DataError, match="cannot read the tests"):
        grade_code(block("print(3)"), given, {}, LIMITS)


def test_tests_in_the_metadata_come_before_the_label() -> None:
    assert grade_code(block("print(input())"), "assert False", {"tests": [{"input": "a", "output": "a"}]}, LIMITS) == 1


def test_outputs_are_compared_but_for_space_at_the_ends_of_lines() -> None:
    assert is_same_output("1 \n2\n\n", "1\n2")
    assert not is_same_output("1\n\n2", "1\n2")
    assert not is_same_output("12", "1 2")
