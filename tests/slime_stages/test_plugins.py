"""Plug-ins: found by import path, and refused before anything runs if they cannot be called as needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.plugins import accepts, load_function

PLUGIN = """
CONSTANT = 3

async def reward(args, sample, **kwargs):
    return 1.0

def short(args):
    return args

def keyword_only(args, *, sample):
    return sample

def extended(args, sample, evaluation=False):
    return evaluation

def must_know(args, sample, evaluation):
    return evaluation

class Scorer:
    def __init__(self, args, sample):
        self.args = args
"""


@pytest.fixture(autouse=True)
def _plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "plugin_under_test.py").write_text(PLUGIN)
    (tmp_path / "broken_plugin.py").write_text("value = undefined_name\n")
    (tmp_path / "needs_more.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    yield
    load_function.cache_clear()
    for name in ("plugin_under_test", "broken_plugin", "needs_more"):
        sys.modules.pop(name, None)


def test_a_function_is_found_by_either_spelling_in_the_current_folder() -> None:
    dotted = load_function("plugin_under_test.reward", like="reward(args, sample)")
    coloned = load_function("plugin_under_test:reward")

    assert dotted is coloned
    assert dotted.__name__ == "reward"


@pytest.mark.parametrize("name", ["reward", "extended", "must_know"])
def test_an_argument_in_brackets_is_given_to_those_that_have_it(name: str) -> None:
    assert callable(load_function(f"plugin_under_test.{name}", like="generate(args, sample, [evaluation])"))


@pytest.mark.parametrize("name", ["reward", "extended", "Scorer"])
def test_whatever_takes_the_arguments_is_taken(name: str) -> None:
    assert callable(load_function(f"plugin_under_test.{name}", like="reward(args, sample)"))


@pytest.mark.parametrize(
    ("name", "shown"), [("short", r"short\(args\)"), ("keyword_only", r"keyword_only\(args, \*, sample\)")]
)
def test_a_function_that_cannot_take_the_arguments_is_shown_beside_the_call(name: str, shown: str) -> None:
    with pytest.raises(UsageError, match=rf"`plugin_under_test.{name}` is `{shown}`") as caught:
        load_function(f"plugin_under_test.{name}", like="reward(args, sample)")

    assert caught.value.hint == "it is called as reward(args, sample)"


def test_a_builtin_without_a_signature_is_taken_as_it_is() -> None:
    assert load_function("builtins.max", like="reward(args, sample)") is max


def test_a_name_that_is_not_there_or_is_no_function_is_answered_with_those_that_are() -> None:
    for name in ("rewards", "CONSTANT"):
        with pytest.raises(UsageError, match=f"`plugin_under_test` has no function `{name}`") as caught:
            load_function(f"plugin_under_test.{name}")
        assert caught.value.hint == "it has reward, short, keyword_only, extended, must_know, Scorer"


def test_a_path_without_a_module_is_refused() -> None:
    with pytest.raises(UsageError, match="`reward` is no import path") as caught:
        load_function("reward")

    assert (caught.value.exit_code, caught.value.hint) == (2, "write it as package.module.function")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("module_that_is_absent", "No module named 'module_that_is_absent'"),
        ("needs_more", "No module named 'a_module_that_nobody_has'"),
        ("broken_plugin", "NameError: name 'undefined_name' is not defined"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_reason(module: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"`{module}.reward` cannot be imported: .*{reason}") as caught:
        load_function(f"{module}.reward")

    assert caught.value.hint == f'python -c "import {module}"'


def test_whether_a_function_takes_a_keyword_is_seen_from_its_signature() -> None:
    reward, short = load_function("plugin_under_test.reward"), load_function("plugin_under_test.short")
    extended = load_function("plugin_under_test.extended")

    assert [accepts(function, "evaluation") for function in (reward, short, extended)] == [True, False, True]
