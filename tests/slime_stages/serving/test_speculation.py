"""What is refused of speculative decoding, and whose layers draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.launch import EngineOptions, server_command
from slime_stages.serving.speculation import (
    draft_flags,
    refuse_to_overwrite_draft,
    verification_flags,
    without_own_draft,
)
from tests.slime_stages.serving.fake_engine import FakeEngine, serving


def test_an_algorithm_that_would_take_the_likeliest_token_is_refused_before_anything_starts(tiny_model: Path) -> None:
    options = EngineOptions(device="cpu", flags={"speculative_algorithm": "DFLASH"})

    with pytest.raises(UsageError, match=r"speculative decoding by DFLASH is not known to sample on a CPU"):
        server_command(options, tiny_model, "0", 1)
    with pytest.raises(UsageError, match=r"\(NGRAM\) takes the likeliest token at any temperature"):
        verification_flags({"speculative_algorithm": "NGRAM"}, has_kernels=True)
    assert verification_flags({"speculative_algorithm": None}, has_kernels=True) == {}


def test_layers_of_the_policy_draft_for_the_version_that_they_came_with(tmp_path: Path) -> None:
    first, second, other = (make_config(tmp_path / name, num_nextn_predict_layers=1) for name in ("1", "2", "other"))
    plain, given = {"speculative_algorithm": "NEXTN"}, {"speculative_draft_model_path": str(first)}

    assert without_own_draft({**plain, **given}, str(first)) == plain
    assert without_own_draft({**plain, **given}, str(other)) == {**plain, **given}
    assert draft_flags(plain, second) == {"speculative_draft_model_path": str(second)}
    assert draft_flags(plain, make_config(tmp_path / "without")) == {}
    standalone = {"speculative_algorithm": "STANDALONE", **given}
    assert without_own_draft(standalone, str(first)) == standalone
    assert draft_flags(standalone, second) == {}


def test_weights_are_not_loaded_over_a_draft_model_of_another_kind(tmp_path: Path) -> None:
    policy, same = make_config(tmp_path / "policy", hidden_size=8), make_config(tmp_path / "same", hidden_size=8)
    small = make_config(tmp_path / "small", hidden_size=4)

    for draft in (None, str(same)):
        with serving(FakeEngine(speculative_draft_model_path=draft)) as engine:
            handle = EngineHandle(engine.url)
            refuse_to_overwrite_draft(handle, handle.server_info(), policy)
    says = rf"drafts with {small}, which {policy} would overwrite"
    with serving(FakeEngine(speculative_draft_model_path=str(small))) as engine:
        handle = EngineHandle(engine.url)
        with pytest.raises(UsageError, match=says):
            refuse_to_overwrite_draft(handle, handle.server_info(), policy)


def make_config(folder: Path, **settings: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return folder
