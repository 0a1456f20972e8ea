"""The table of hooks: a function of the user's is called as slime calls it, or refused before anything is queued."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages.config.hooks import (
    BY_SETTING,
    HOOKS,
    Hook,
    check_hooks,
    generation_function,
    load_hook,
    named_hooks,
    uses_engines,
)
from slime_stages.errors import UsageError
from slime_stages.plugins import load_function
from tests.slime_stages.config.settings import resolved

SOURCE = """
import a_package_of_the_trainer

def init(args): ...
"""


def good(hook: Hook) -> str:
    """A function with exactly the parameters of the call."""
    if hook.methods:
        methods = "\n".join(f"    def {method}: ..." for method in hook.methods)
        return f"class good_{hook.setting}:\n    def __init__(self, args): ...\n{methods}\n"
    parameters = re.sub(r"\[(\w+)\]", r"\1", hook.call.partition("(")[2])
    return f"def good_{hook.call.partition('(')[0]}_{hook.setting}({parameters}: ...\n"


@pytest.fixture(autouse=True)
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lines = [
        "def bad(one_argument_that_nobody_gives, *, another): ...\n",
        "class Half:\n    def __init__(self, args): ...\n",
    ]
    for hook in HOOKS:
        text = good(hook)
        lines.append(text.replace(text.partition("(")[0].partition(":")[0].split()[1], f"good_{hook.setting}", 1))
    (tmp_path / "hooks_under_test.py").write_text("\n".join(lines))
    (tmp_path / "trainers_hooks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield
    load_function.cache_clear()
    for name in ("hooks_under_test", "trainers_hooks"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("separator", [".", ":"])
@pytest.mark.parametrize("setting", BY_SETTING)
def test_a_function_with_slimes_parameters_is_taken(setting: str, separator: str) -> None:
    hook = BY_SETTING[setting]

    assert callable(load_hook(hook, f"hooks_under_test{separator}good_{setting}"))


@pytest.mark.parametrize("setting", BY_SETTING)
def test_a_function_with_other_parameters_is_shown_beside_the_call(setting: str) -> None:
    hook = BY_SETTING[setting]

    with pytest.raises(UsageError, match=r"`hooks_under_test.bad` is `bad\(") as caught:
        load_hook(hook, "hooks_under_test.bad")

    assert caught.value.hint == f"it is called as {hook.call}"


def test_a_class_needs_every_method() -> None:
    with pytest.raises(UsageError, match=r"`hooks_under_test\.Half` has no method `get_samples`") as caught:
        load_hook(BY_SETTING["data_source_path"], "hooks_under_test.Half")

    assert caught.value.hint == "it is called as get_samples(self, num_samples)"


def test_an_argument_that_is_given_by_name_must_be_taken_by_name(tmp_path: Path) -> None:
    (tmp_path / "hooks_under_test.py").write_text("def f(args, rollout_id, data_source): ...\n")

    with pytest.raises(UsageError, match="unexpected keyword argument 'evaluation'"):
        load_hook(BY_SETTING["rollout_function_path"], "hooks_under_test.f")


def test_the_functions_of_evaluation_sets_are_checked_with_the_settings(tmp_path: Path) -> None:
    sets = {"dev": {"path": "/dev.jsonl", "custom_rm_path": "hooks_under_test.bad"}}
    config = resolved(
        eval_datasets=sets,
        custom_generate_function_path="hooks_under_test.good_custom_generate_function_path",
        rollout_sample_hook_path=["hooks_under_test:good_rollout_sample_hook_path"],
    ).config

    assert [named.source for named in named_hooks(config)] == [
        "custom_generate_function_path",
        "rollout_sample_hook_path",
        "custom_rm_path of the data set dev",
    ]
    with pytest.raises(UsageError, match=r"custom_rm_path of the data set dev: `hooks_under_test\.bad` is"):
        check_hooks(config)


def test_a_function_whose_module_is_missing_is_refused_with_its_setting() -> None:
    config = resolved(custom_rm_path="no_such_module.reward").config

    with pytest.raises(UsageError, match=r"custom_rm_path: `no_such_module\.reward` cannot be imported"):
        check_hooks(config)


def test_a_trainers_function_may_need_packages_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_stages.config import hooks

    named = hooks.NamedHook(
        hook=BY_SETTING["custom_megatron_init_path"], path="trainers_hooks.init", source="custom_megatron_init_path"
    )
    monkeypatch.setattr(hooks, "named_hooks", lambda config: iter([named]))

    [sentence] = check_hooks(resolved().config)

    assert "No module named 'a_package_of_the_trainer'" in sentence
    assert sentence.endswith("it is not checked before the train stage")


def test_slimes_own_rollout_functions_are_known_by_their_names_there() -> None:
    sft = resolved(
        rollout_function_path="slime.rollout.sft_rollout.generate_rollout",
        eval_function_path="slime.rollout.sglang_rollout.generate_rollout",
    ).config

    check_hooks(sft)

    function = generation_function(sft, "train")
    assert function is not None
    assert function.__module__ == "slime_stages.generation.sft"
    assert (uses_engines(sft, "train"), generation_function(sft, "held"), uses_engines(sft, "held")) == (
        False,
        None,
        True,
    )
