from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.serving.sglang_config import read_sglang_config

TWO_MODELS = """
sglang:
  - name: actor
    num_gpus_per_engine: 2
    server_groups:
      - {worker_type: prefill, num_gpus: 4, overrides: {mem_fraction_static: 0.8}}
      - {worker_type: decode, num_gpus: 8}
  - name: judge
    model_path: /models/judge
    update_weights: false
    engine_groups:
      - worker_type: regular
        num_gpus: 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines.yaml"


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_sglang_config(path)
    return caught.value.message.replace(str(path), "FILE")


def test_models_and_groups_are_read_by_either_name(path: Path) -> None:
    path.write_text(TWO_MODELS)

    actor, judge = read_sglang_config(path)

    assert [(group.worker_type, group.num_gpus) for group in actor.server_groups] == [("prefill", 4), ("decode", 8)]
    assert actor.server_groups[0].overrides == {"mem_fraction_static": 0.8}
    assert (judge.model_path, judge.update_weights, judge.server_groups[0].num_gpus) == ("/models/judge", False, 1)


def test_a_file_without_the_top_key_is_refused(path: Path) -> None:
    assert refusal(path, "models: []\n") == "FILE has no list of models below `sglang:`"
    assert refusal(path, "- a\n") == "FILE has no list of models below `sglang:`"
    assert refusal(path, "") == "FILE has no list of models below `sglang:`"


def test_text_that_is_no_yaml_is_refused_with_its_place(path: Path) -> None:
    assert "FILE is no YAML: " in refusal(path, "sglang:\n  - {name: actor\n")
    assert "line 3" in refusal(path, "sglang:\n  - {name: actor\n")


def test_a_file_that_is_not_there_is_a_usage_error(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_sglang_config(path)


def test_every_mistake_is_told_with_its_line(path: Path) -> None:
    text = """sglang:
  - name: actor
    server_groups:
      - worker_type: prefil
        num_gpus: 0
      - worker_type: regular
        num_gpus: 1
        memory: 3
"""
    message = refusal(path, text)

    assert "3 problems" in message
    assert "FILE:4: sglang[0].server_groups[0].worker_type should be" in message
    assert "FILE:5: sglang[0].server_groups[0].num_gpus should be greater than 0" in message
    assert "FILE:8: sglang[0].server_groups[1].memory is not known here" in message


def test_a_model_needs_a_name_and_groups(path: Path) -> None:
    message = refusal(path, "sglang:\n  - model_path: /models/x\n")

    assert "FILE:2: sglang[0].name is missing" in message
    assert "FILE:2: sglang[0].server_groups is missing" in message


def test_names_are_unique(path: Path) -> None:
    entry = "  - {name: actor, server_groups: [{worker_type: regular, num_gpus: 1}]}\n"

    assert refusal(path, f"sglang:\n{entry}{entry}") == "FILE:3: sglang[1].name is actor, as that of entry 0 is"


def test_groups_of_a_model_share_their_path(path: Path) -> None:
    text = """sglang:
  - name: actor
    model_path: /models/a
    server_groups:
      - {worker_type: regular, num_gpus: 1, overrides: {model_path: /models/b}}
      - {worker_type: regular, num_gpus: 1}
"""
    assert refusal(path, text) == (
        "FILE:2: sglang[0] serves /models/a and /models/b: groups of one model share model_path"
    )


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (["prefill"], "has no decode group: prefill and decode work in pairs"),
        (["decode"], "has no prefill group: prefill and decode work in pairs"),
        (["prefill", "decode", "regular"], "mixes regular engines with prefill and decode"),
        (["encoder"], "has no group that generates"),
    ],
)
def test_groups_that_cannot_answer_together_are_refused(path: Path, kinds: list[str], says: str) -> None:
    groups = ", ".join(f"{{worker_type: {kind}, num_gpus: 1}}" for kind in kinds)

    assert says in refusal(path, f"sglang:\n  - name: actor\n    server_groups: [{groups}]\n")
