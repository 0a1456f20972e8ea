"""Make the example's tasks: small modules, each with one fault and with tests that find it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data"
FAULTS = {
    "mean": ("return sum(values) / len(values)", "return sum(values) // len(values)", "mean([1, 2]) == 1.5"),
    "last": ("return values[-1]", "return values[1]", "last([3, 4, 5]) == 5"),
    "span": ("return max(values) - min(values)", "return max(values) + min(values)", "span([2, 7]) == 5"),
    "evens": (
        "return [v for v in values if v % 2 == 0]",
        "return [v for v in values if v % 2]",
        "evens([1, 2]) == [2]",
    ),
    "join": ('return ",".join(map(str, values))', 'return " ".join(map(str, values))', 'join([1, 2]) == "1,2"'),
    "count": ("return len(set(values))", "return len(values)", "count([1, 1, 2]) == 2"),
    "first_half": (
        "return values[: len(values) // 2]",
        "return values[len(values) // 2 :]",
        "first_half([1, 2]) == [1]",
    ),
    "squares": ("return [v * v for v in values]", "return [v + v for v in values]", "squares([3]) == [9]"),
}
"""For each function: its last line as it should be and as it is, and what must hold."""


def tasks() -> Iterator[dict[str, Any]]:
    """Rows of prompt data; there is one for each function."""
    for name, (_, wrong, claim) in FAULTS.items():
        statement = f"`{name}` in lists.py is wrong: `{claim}` does not hold. Mend it.\n"
        metadata = {
            "instance_id": f"lists-{name}",
            "image": None,
            "workdir": "/workspace",
            "problem_statement": statement,
            "files": {"lists.py": f"def {name}(values):\n    {wrong}\n"},
            "eval_files": {"check.py": f"from lists import {name}\n\nassert {claim}\n"},
            "eval_cmd": "python3 check.py",
        }
        yield {"prompt": statement, "label": "", "metadata": metadata}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in tasks()))
    print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
