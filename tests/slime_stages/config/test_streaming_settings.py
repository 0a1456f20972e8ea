"""How a run is told that its rollouts stream."""

from __future__ import annotations

import pytest

from slime_stages.config.hooks import FULLY_ASYNC, generation_function, uses_engines
from slime_stages.errors import UsageError
from tests.slime_stages.config.settings import resolved


def test_slimes_own_function_turns_streaming_on() -> None:
    found = resolved(rollout_function_path=FULLY_ASYNC)

    assert found.config.rollout.rollout_streaming
    assert found.config.rollout.carries
    assert found.sources["rollout_streaming"] == "derived from rollout_function_path"
    assert generation_function(found.config, "train") is None
    assert uses_engines(found.config, "train")


def test_a_function_in_place_of_generation_cannot_stream() -> None:
    with pytest.raises(UsageError, match=r"rollout_streaming = true .* keeps groups in flight, which a function"):
        resolved(rollout_streaming=True, rollout_function_path="mine.rollout")


def test_a_setting_that_only_waits_makes_nothing_stale() -> None:
    short, long = (resolved(rollout_streaming=True, streaming_wait_seconds=seconds).config for seconds in (1.0, 9.0))

    assert short.digest(("rollout",)) == long.digest(("rollout",))
    assert short.digest(("rollout",)) != resolved().config.digest(("rollout",))
