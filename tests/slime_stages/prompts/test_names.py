from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.config.types import prompt_source
from slime_stages.errors import UsageError
from slime_stages.prompts.names import HubName, hub_name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["gsm8k", "openai/gsm8k", "openai/gsm8k:train", "openai/gsm8k:main:test@[:100]"])
def test_a_word_that_is_called_like_nothing_here_is_a_data_sets_name(here: Path, name: str) -> None:
    assert prompt_source(name) == f"hf:{name}"
    assert prompt_source(f"hf:{name}") == f"hf:{name}"


@pytest.mark.parametrize("path", ["train.jsonl", "data/train.parquet@[0:5]", "./gsm8k", "a/b/c", "data.csv/../x"])
def test_what_looks_like_a_path_is_one_even_if_it_is_not_there(here: Path, path: str) -> None:
    assert prompt_source(path).startswith("/")


def test_a_folder_that_is_there_is_no_name_with_and_without_a_split(here: Path) -> None:
    (here / "openai" / "gsm8k").mkdir(parents=True)

    assert prompt_source("openai/gsm8k") == f"{here}/openai/gsm8k"
    assert prompt_source("openai/gsm8k:test@[1:]") == f"{here}/openai/gsm8k:test@[1:]"


def test_a_resolved_source_stays_what_it_is_in_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = prompt_source("gsm8k:test")
    (here / "elsewhere" / "gsm8k").mkdir(parents=True)
    monkeypatch.chdir(here / "elsewhere")

    assert prompt_source(frozen) == frozen


def test_a_name_may_have_a_split_or_a_configuration_and_a_split() -> None:
    assert hub_name("hf:a/b") == HubName("a/b", None, None)
    assert hub_name("hf:a/b:test") == HubName("a/b", None, "test")
    assert hub_name("hf:a/b:main:test") == HubName("a/b", "main", "test")
    with pytest.raises(UsageError, match="is no name of a data set"):
        hub_name("hf:a/b/c")
