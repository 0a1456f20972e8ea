from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import MissingInputError, UsageError
from slime_stages.rewards.graders import ifbench
from slime_stages.rewards.readiness import check_reward_types
from tests.slime_stages.config.settings import resolved


def test_a_reward_type_that_there_is_not_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="rm_type: unknown reward type `maths`") as caught:
        check_reward_types(resolved(rm_type="maths").config)

    assert caught.value.hint == "did you mean `math`?"


def test_known_types_and_boxed_ones_pass() -> None:
    assert check_reward_types(resolved(rm_type="boxed_math").config) == []
    assert check_reward_types(resolved().config) == []


def test_ifbench_without_nltks_data_is_refused_with_the_command_that_fetches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])

    with pytest.raises(MissingInputError, match="punkt_tab, stopwords, averaged_perceptron_tagger_eng") as caught:
        check_reward_types(resolved(rm_type="boxed_ifbench").config)

    assert caught.value.message.startswith("rm_type: reward type `ifbench` needs data of NLTK")
    assert str(caught.value.hint).startswith("python -m nltk.downloader -d FOLDER punkt_tab stopwords ")


def test_ifbench_with_nltks_data_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nltk

    for place in ifbench.NLTK_DATA.values():
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])

    assert check_reward_types(resolved(rm_type="ifbench").config) == []


def test_a_package_that_is_not_here_is_left_to_the_reward_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ifbench._not_installed()

    monkeypatch.setattr(ifbench, "_checkers", missing)

    [sentence] = check_reward_types(resolved(rm_type="ifbench").config)

    assert sentence.startswith("rm_type: reward type `ifbench` needs the package if-verifiable; it is not checked")
