"""The turns of a session, in the trace of the sample that it is of."""

from __future__ import annotations

from collections.abc import Callable

from slime_stages.sample import Sample
from slime_stages.trace.handles import bind_trace
from tests.slime_stages.agent.adapters.conftest import Served
from tests.slime_stages.agent.adapters.test_sessions import post_later


async def test_a_traced_sample_tells_of_every_turn(anthropic_served: Callable[..., Served]) -> None:
    served, sample = anthropic_served(["a", "b"]), Sample(index=1, group_index=0)
    bind_trace(sample)

    await post_later(served)
    await post_later(served)
    await served.samples(base_sample=sample)

    assert sample.trace is not None
    assert [(event["type"], event["name"]) for event in sample.trace["events"]] == [
        ("span_start", "turn"),
        ("span_end", "turn"),
    ] * 2
    assert sample.trace["events"][1]["attrs"]["finish_reason"] == "stop"


async def test_a_sample_that_is_not_traced_stays_so(anthropic_served: Callable[..., Served]) -> None:
    served, sample = anthropic_served(["a"]), Sample(index=1, group_index=0)

    await post_later(served)
    await served.samples(base_sample=sample)

    assert sample.trace is None
