"""Traces as Chrome trace JSON, which chrome://tracing and Perfetto show as bars over time.

A sample is a row; what overlaps without one being within the other stands in further rows of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MICROSECONDS = 1e6
ROWS_PER_SAMPLE = 64
"""Numbers kept free for a sample's further rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The events of one sample."""

    shard: int
    row: int
    name: str
    """For people, such as `sample 163`."""
    events: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A span, or an event, which has no length."""

    name: str
    start: float
    """Seconds."""
    stop: float | None
    arguments: dict[str, Any]


def chrome_trace(tracks: Sequence[Track]) -> dict[str, Any]:
    """The JSON object, with times from the first event on."""
    bars = [(track, bars_of(track.events)) for track in tracks]
    first = min((bar.start for _, own in bars for bar in own), default=0.0)
    shards = sorted({track.shard for track in tracks})
    events = [_meta("process_name", shard, 0, f"shard {shard}") for shard in shards]
    for track, own in bars:
        events += _events_of(track, own, first)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"first_event_seconds": first}}


def bars_of(events: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Spans with what was said at their beginning and end; one that never ended lasts as long as anything else."""
    last = max((event["ts"] for event in events), default=0.0)
    ends = {event["span_id"]: event for event in events if event["type"] == "span_end"}
    bars = []
    for event in events:
        if event["type"] == "span_end":
            continue
        end: Mapping[str, Any] = ends.get(event.get("span_id"), {})
        arguments = {**event.get("attrs", {}), **end.get("attrs", {})}
        if event["type"] == "span_start" and not end:
            arguments["unfinished"] = True
        stop = None if event["type"] == "event" else end.get("ts", last)
        bars.append(Bar(name=event["name"], start=event["ts"], stop=stop, arguments=arguments))
    return sorted(bars, key=lambda bar: (bar.start, -(bar.stop or bar.start)))


def _events_of(track: Track, bars: Sequence[Bar], first: float) -> Iterator[dict[str, Any]]:
    lanes: list[list[float]] = []
    for bar in bars:
        known = len(lanes)
        lane = _lane(lanes, bar.start, bar.start if bar.stop is None else bar.stop)
        thread = track.row * ROWS_PER_SAMPLE + lane
        if lane == known:
            yield _meta("thread_name", track.shard, thread, track.name if lane == 0 else f"{track.name} ({lane + 1})")
        event = {
            "name": bar.name,
            "ts": (bar.start - first) * MICROSECONDS,
            "pid": track.shard,
            "tid": thread,
            "args": bar.arguments,
        }
        if bar.stop is None:
            yield {**event, "ph": "i", "s": "t"}
        else:
            yield {**event, "ph": "X", "dur": (bar.stop - bar.start) * MICROSECONDS}


def _lane(lanes: list[list[float]], start: float, stop: float) -> int:
    """The first row in which a bar is beside, or within, the one before. A row holds the ends of its open bars."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or stop <= ends[-1]:
            ends.append(stop)
            return number
    lanes.append([stop])
    return len(lanes) - 1


def _meta(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": value}}
