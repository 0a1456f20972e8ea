"""Traces as Chrome trace JSON."""

from __future__ import annotations

from typing import Any

from slime_stages.trace.chrome import Track, bars_of, chrome_trace


def span(name: str, start: float, stop: float | None, **attrs: Any) -> list[dict[str, Any]]:
    begin = {"type": "span_start", "name": name, "ts": start, "span_id": name}
    return [begin] if stop is None else [begin, {"type": "span_end", "ts": stop, "span_id": name, "attrs": attrs}]


def track(*events: dict[str, Any], row: int = 0) -> Track:
    return Track(shard=2, row=row, name=f"sample {row}", events=events)


def test_a_span_is_a_bar_in_microseconds_from_the_first_event() -> None:
    made = chrome_trace(
        [track(*span("generate", 100.0, 100.5, tokens=6)), track(*span("generate", 101.0, 101.25), row=1)]
    )

    bars = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [(bar["ts"], bar["dur"], bar["pid"], bar["tid"], bar["args"]) for bar in bars] == [
        (0.0, 500_000.0, 2, 0, {"tokens": 6}),
        (1_000_000.0, 250_000.0, 2, 64, {}),
    ]


def test_samples_and_shards_have_their_names() -> None:
    made = chrome_trace([track(*span("generate", 0.0, 1.0), row=1)])

    names = {event["name"]: event["args"]["name"] for event in made["traceEvents"] if event["ph"] == "M"}
    assert names == {"process_name": "shard 2", "thread_name": "sample 1"}


def test_what_lies_within_another_shares_its_row_and_what_overlaps_does_not() -> None:
    nested = [*span("outer", 0.0, 10.0), *span("left", 1.0, 5.0), *span("right", 2.0, 8.0), *span("after", 6.0, 7.0)]

    made = chrome_trace([track(*nested)])

    rows = {event["name"]: event["tid"] for event in made["traceEvents"] if event["ph"] == "X"}
    assert rows == {"outer": 0, "left": 0, "right": 1, "after": 0}
    assert [e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"] == [
        "sample 0",
        "sample 0 (2)",
    ]


def test_a_span_that_never_ended_lasts_to_the_end_and_says_so() -> None:
    [cut, whole] = bars_of([*span("cut", 0.0, None), *span("whole", 1.0, 4.0)])

    assert (cut.name, cut.stop, cut.arguments) == ("cut", 4.0, {"unfinished": True})
    assert whole.arguments == {}


def test_an_event_is_a_mark() -> None:
    made = chrome_trace([track(*span("outer", 0.0, 1.0), {"type": "event", "name": "found", "ts": 0.5})])

    [mark] = [event for event in made["traceEvents"] if event["ph"] == "i"]
    assert (mark["name"], mark["ts"], mark["tid"], mark["s"]) == ("found", 500_000.0, 0, "t")
