"""Recording spans on samples."""

from __future__ import annotations

import asyncio
import timeit
from typing import Any

import numpy as np
import orjson
import pytest

from slime_stages.sample import Sample
from slime_stages.trace.handles import (
    bind_trace,
    bind_trace_carrier,
    dump_trace,
    export_trace,
    import_trace,
    share_trace,
)
from slime_stages.trace.spans import (
    build_sglang_meta_trace_attrs,
    span_that_ended,
    trace_event,
    trace_function,
    trace_next_attempt,
    trace_span,
)


def traced(index: int = 3) -> Sample:
    sample = Sample(index=index, group_index=1)
    bind_trace(sample)
    return sample


def events_of(sample: Sample) -> list[dict[str, Any]]:
    assert sample.trace is not None
    events: list[dict[str, Any]] = sample.trace["events"]
    return events


def test_a_span_has_a_beginning_an_end_and_what_was_said_of_it() -> None:
    sample = traced()

    with trace_span(sample, "search", attrs={"query": "q"}) as span:
        span.set("hits", 2)
    span.update({"late": True})

    start, end = events_of(sample)
    assert (start["type"], start["name"], start["attrs"]) == ("span_start", "search", {"query": "q"})
    assert (end["type"], end["span_id"], end["attrs"]) == ("span_end", start["span_id"], {"hits": 2, "late": True})
    assert start["ts"] <= end["ts"]
    assert (sample.trace or {})["sample_id"] == 3


def test_spans_know_the_one_around_them_also_across_tasks() -> None:
    sample, other = traced(), traced(4)

    async def call(name: str) -> None:
        with trace_span(sample, name):
            await asyncio.sleep(0)

    async def both() -> None:
        with trace_span([sample, other], "outer"):
            await asyncio.gather(call("left"), call("right"))
            trace_event(sample, "done")

    asyncio.run(both())

    starts = {event["name"]: event for event in events_of(sample) if event["type"] != "span_end"}
    outer = starts["outer"]["span_id"]
    assert starts["outer"]["parent_span_id"] is None
    assert [starts[name]["parent_span_id"] for name in ("left", "right", "done")] == [outer] * 3
    assert [event["name"] for event in events_of(other)] == ["outer", "outer"]


def test_an_error_ends_its_span_and_goes_on() -> None:
    sample = traced()

    with pytest.raises(ValueError, match="no hits"), trace_span(sample, "search"):
        raise ValueError("no hits")

    assert events_of(sample)[-1]["attrs"] == {"error_type": "ValueError", "error_message": "no hits"}


def test_what_is_not_traced_keeps_nothing() -> None:
    sample = Sample()

    with trace_span(sample, "search") as span:
        span.set("hits", 2)
        trace_event([sample], "found")
    trace_next_attempt(sample)

    assert sample.trace is None
    assert span.set("hits", 3) is span


def test_a_span_of_what_is_not_traced_costs_next_to_nothing() -> None:
    sample = Sample()

    def spanned() -> None:
        with trace_span(sample, "search"):
            pass

    assert min(timeit.repeat(spanned, number=1000, repeat=5)) < 0.02  # 20 µs each, on a machine that is busy


async def test_a_decorated_function_is_a_span_of_its_argument() -> None:
    sample = traced()

    @trace_function("by_name", target="sample", attrs_getter=lambda turn, sample: {"turn": turn})
    async def by_name(turn: int, sample: Sample) -> int:
        return turn + 1

    @trace_function("found")
    def found(turn: int, some: Sample) -> int:
        return turn + 2

    @trace_function("elsewhere", target_getter=lambda box: box["sample"])
    def elsewhere(box: dict[str, Any]) -> int:
        return 4

    assert (await by_name(1, sample=sample), found(1, sample), elsewhere({"sample": sample})) == (2, 3, 4)
    starts = [event for event in events_of(sample) if event["type"] == "span_start"]
    assert [(event["name"], event.get("attrs")) for event in starts] == [
        ("by_name", {"turn": 1}),
        ("found", None),
        ("elsewhere", None),
    ]


def test_a_getter_that_fails_fails_nothing_else() -> None:
    @trace_function("getter", target_getter=lambda box: box["missing"])
    def function(box: dict[str, Any]) -> int:
        return 1

    assert function({}) == 1


def test_a_trace_goes_on_in_another_process() -> None:
    sample = traced()
    with trace_span(sample, "outer"):
        payload = orjson.loads(orjson.dumps(export_trace(bind_trace(sample))))

    there = import_trace(payload)
    with trace_span(there, "inner"):
        pass

    inner = there.carrier["events"][0]
    assert there.trace_id == (sample.trace or {})["trace_id"]
    assert inner["parent_span_id"] == events_of(sample)[0]["span_id"]
    assert bind_trace_carrier(there.carrier).carrier["events"] == there.carrier["events"]


def test_another_attempt_is_counted() -> None:
    sample = traced()

    trace_next_attempt(sample, attrs={"why": "aborted"})

    assert (sample.trace or {})["attempt"] == 1
    assert events_of(sample)[0]["attrs"] == {"attempt": 1, "why": "aborted"}


def test_copies_that_a_function_made_have_the_whole_span_that_it_ran_in() -> None:
    sample = traced()
    with trace_span(sample, "generate"):
        early = Sample.from_dict(orjson.loads(orjson.dumps(sample.to_dict())))
        fresh = Sample(index=9)

    share_trace(sample, [sample, early, fresh])

    for made in (sample, early, fresh):
        assert [event["type"] for event in events_of(made)] == ["span_start", "span_end"]


def test_a_trace_is_stored_whatever_was_said_in_it() -> None:
    sample = traced()
    trace_event(sample, "odd", attrs={"array": np.arange(2), "object": {1: object}})

    stored = orjson.loads(dump_trace(sample.trace) or "")

    assert stored["events"][0]["attrs"] == {"array": [0, 1], "object": {"1": "<class 'object'>"}}


def test_a_span_that_is_over_can_be_added() -> None:
    start, end = span_that_ended("scoring", seconds=2.0, attrs={"status": "timeout"})

    assert end["ts"] - start["ts"] == pytest.approx(2.0)
    assert end["attrs"] == {"status": "timeout"}


def test_what_an_engine_says_of_a_request_is_told_by_its_span() -> None:
    meta = {
        "id": "r-1",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 7,
        "cached_tokens": None,
        "pd_decode_forward_duration": 0.1,
        "output_token_logprobs": [[-0.1, 5]],
    }

    assert build_sglang_meta_trace_attrs(meta) == {
        "prompt_tokens": 7,
        "pd_decode_forward_duration": 0.1,
        "finish_reason": "stop",
        "sglang_request_id": "r-1",
    }


def test_what_a_plug_in_keeps_under_that_name_is_no_trace() -> None:
    sample = Sample()
    sample.trace = "its own"  # type: ignore[assignment]

    with trace_span(sample, "search"):
        share_trace(sample, [Sample()])

    assert sample.trace == "its own"
