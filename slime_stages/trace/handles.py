"""Traces, and handles to them for code that has no sample, or is in another process."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from slime_stages.sample import Sample

TRACE_VERSION = 1

Trace = dict[str, Any]
Target = Any
"""A sample, a handle, or a list of targets. Anything else is not traced."""


@dataclass(slots=True)
class TraceHandle:
    """A trace without its sample."""

    trace_id: str
    carrier: Trace
    """The trace itself, whose `events` grow."""
    sample_id: int | str | None = None
    group_id: int | str | None = None
    attempt: int = 0
    parent_span_id: str | None = None
    """Of spans that have no other around them here."""


open_spans: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("slime_stages_open_spans", default=())
"""(trace, span) around what runs now, the innermost last; asyncio tasks and threads started by it inherit them."""


def bind_trace(sample: Sample) -> TraceHandle:
    """The sample's trace, begun if it has none."""
    if not is_trace(sample.trace):
        sample.trace = new_trace(sample.index, sample.group_index)
    return _handle(sample.trace)


def new_trace(sample_id: int | str | None = None, group_id: int | str | None = None) -> Trace:
    return {
        "version": TRACE_VERSION,
        "trace_id": os.urandom(16).hex(),
        "sample_id": sample_id,
        "group_id": group_id,
        "attempt": 0,
        "events": [],
    }


def bind_trace_carrier(carrier: Trace | None = None, *, parent_span_id: str | None = None, **known: Any) -> TraceHandle:
    """A handle of a trace that is kept elsewhere than on a sample."""
    carrier = {} if carrier is None else carrier
    for name, value in {**new_trace(), **known}.items():
        carrier.setdefault(name, value)
    handle = _handle(carrier)
    handle.parent_span_id = parent_span_id
    return handle


def export_trace(handle: TraceHandle) -> Trace:
    """What another process needs for spans of the same trace, below the one around this call."""
    about = {name: value for name, value in handle.carrier.items() if name != "events"}
    return {**about, "parent_span_id": parent_of(handle)}


def import_trace(payload: Mapping[str, Any], carrier: Trace | None = None) -> TraceHandle:
    """The inverse: a trace whose events go into `carrier`."""
    known = {name: payload[name] for name in ("trace_id", "sample_id", "group_id", "attempt") if name in payload}
    return bind_trace_carrier(carrier, **known, parent_span_id=payload.get("parent_span_id"))


def parent_of(handle: TraceHandle) -> str | None:
    """The span of this trace around what runs now."""
    around = (span for trace, span in reversed(open_spans.get()) if trace == handle.trace_id)
    return next(around, handle.parent_span_id)


def is_trace(value: Any) -> TypeGuard[Trace]:
    """Whether it is a trace of ours; a plug-in may have put anything there."""
    return isinstance(value, dict) and "trace_id" in value and isinstance(value.get("events"), list)


def handles_of(target: Target) -> list[TraceHandle]:
    """What there is to record in; nothing for what is not traced."""
    if isinstance(target, Sample):
        return [_handle(target.trace)] if is_trace(target.trace) else []
    if isinstance(target, TraceHandle):
        return [target]
    if isinstance(target, list | tuple):
        return [handle for item in target for handle in handles_of(item)]
    return []


def take_over(sample: Sample, other: TraceHandle) -> None:
    """Have the sample's trace tell what was recorded elsewhere for it."""
    for handle in handles_of(sample):
        handle.carrier["events"] += other.carrier["events"]


def share_trace(sample: Sample, made: Sequence[Sample]) -> None:
    """Give what a function made of a sample its trace: copies lack the end of the span that the function ran in."""
    if not is_trace(sample.trace) or not sample.trace["events"]:
        return
    end = sample.trace["events"][-1]
    for item in made:
        if not is_trace(item.trace):
            item.trace = copy.deepcopy(sample.trace)
        elif item.trace is not sample.trace and item.trace["trace_id"] == sample.trace["trace_id"]:
            item.trace["events"].append(end)


def dump_trace(trace: Any) -> str | None:
    """A trace or its events as JSON; of what JSON cannot hold, how Python writes it."""
    if trace is None:
        return None
    return orjson.dumps(trace, default=repr, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()


def _handle(trace: Trace) -> TraceHandle:
    return TraceHandle(
        trace_id=trace["trace_id"],
        carrier=trace,
        sample_id=trace.get("sample_id"),
        group_id=trace.get("group_id"),
        attempt=trace.get("attempt", 0),
    )
