"""Recording: spans around what takes time, events for what does not."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from slime_stages.trace.handles import Target, TraceHandle, handles_of, open_spans, parent_of

SCORING = "reward_model"
META_KEYS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "queue_time",
    "e2e_latency",
    "decode_throughput",
)
"""What an engine says of a request that goes into its span, besides all that begins with `pd_`."""

Attributes = Mapping[str, Any] | None
Function = TypeVar("Function", bound=Callable[..., Any])


class Span:
    """A span that is recorded in each of its traces; a context manager, to be entered once."""

    __slots__ = ("_attributes", "_ends", "_name", "_open", "_record_error", "_token")

    def __init__(
        self, handles: Sequence[TraceHandle], name: str, attributes: Attributes = None, *, record_error: bool = True
    ) -> None:
        self._name, self._record_error = name, record_error
        self._open = [(handle, os.urandom(8).hex()) for handle in handles]
        self._attributes = dict(attributes or {})
        self._ends: list[dict[str, Any]] = []
        self._token: Any = None

    def set(self, key: str, value: Any) -> Span:
        """Say something of the span, now or after its end."""
        return self.update({key: value})

    def update(self, attrs: Attributes) -> Span:
        self._attributes.update(attrs or {})
        for event in self._ends:
            event["attrs"] = dict(self._attributes)
        return self

    def set_attr(self, key: str, value: Any) -> Span:
        return self.set(key, value)

    def update_attrs(self, attrs: Attributes) -> Span:
        return self.update(attrs)

    def __enter__(self) -> Span:
        now = time.time()
        for handle, span_id in self._open:
            about = {"span_id": span_id, "parent_span_id": parent_of(handle)}
            handle.carrier["events"].append(_event("span_start", self._name, now, self._attributes, about))
        self._attributes = {}
        self._token = open_spans.set((*open_spans.get(), *((handle.trace_id, span) for handle, span in self._open)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        open_spans.reset(self._token)
        if error is not None and self._record_error:
            self.update({"error_type": type(error).__name__, "error_message": str(error)[:500]})
        now = time.time()
        for handle, span_id in self._open:
            self._ends.append(_event("span_end", self._name, now, self._attributes, {"span_id": span_id}))
            handle.carrier["events"].append(self._ends[-1])


class _Off(Span):
    """The span of what is not traced."""

    __slots__ = ()

    def update(self, attrs: Attributes) -> Span:
        return self

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was begun."""


_OFF = _Off((), "")


def trace_span(target: Target, name: str, *, attrs: Attributes = None, record_error: bool = True) -> Span:
    """`with trace_span(sample, "search", attrs={"query": q}) as span: …; span.set("hits", n)`; lists are traced too."""
    handles = handles_of(target)
    return Span(handles, name, attrs, record_error=record_error) if handles else _OFF


def trace_event(target: Target, name: str, *, attrs: Attributes = None) -> None:
    """Something that took no time."""
    for handle in handles_of(target):
        handle.carrier["events"].append(
            _event("event", name, time.time(), attrs, {"parent_span_id": parent_of(handle)})
        )


def trace_next_attempt(target: Target, *, attrs: Attributes = None) -> Target:
    """Count another attempt at the same sample."""
    for handle in handles_of(target):
        handle.attempt = handle.carrier["attempt"] = handle.carrier["attempt"] + 1
        trace_event(handle, "attempt_start", attrs={"attempt": handle.attempt, **(attrs or {})})
    return target


def trace_function(
    name: str,
    *,
    target: str | None = None,
    target_getter: Callable[..., Target] | None = None,
    attrs_getter: Callable[..., Attributes] | None = None,
    record_error: bool = True,
) -> Callable[[Function], Function]:
    """A decorator that makes a span of each call.

    It is recorded for the argument called `target`, or for what `target_getter` makes of the arguments; without either
    for the first argument that is traced.
    """

    def decorate(function: Function) -> Function:
        names = list(inspect.signature(function).parameters)

        def span(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
            with suppress(Exception):  # a getter of the user's must not fail what it watches
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                found = target_getter(*args, **kwargs) if target_getter else _argument(given, target)
                attributes = attrs_getter(*args, **kwargs) if attrs_getter and handles_of(found) else None
                return trace_span(found, name, attrs=attributes, record_error=record_error)
            return _OFF

        @functools.wraps(function)
        async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
            with span(args, kwargs):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with span(args, kwargs):
                return function(*args, **kwargs)

        return traced_coroutine if inspect.iscoroutinefunction(function) else traced  # type: ignore[return-value]

    return decorate


def span_that_ended(name: str, *, seconds: float, attrs: Attributes = None) -> list[dict[str, Any]]:
    """The events of a span that is over now, and that nobody recorded while it was open."""
    now, about = time.time(), {"span_id": os.urandom(8).hex()}
    return [_event("span_start", name, now - seconds, None, about), _event("span_end", name, now, attrs, about)]


def build_sglang_meta_trace_attrs(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine says of its request, for the request's span."""
    known = {key: meta[key] for key in meta if key in META_KEYS or key.startswith("pd_")}
    reason = meta.get("finish_reason")
    told = {
        "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
        "sglang_request_id": meta.get("id"),
    }
    return {key: value for key, value in {**known, **told}.items() if value is not None}


def _argument(given: Mapping[str, Any], name: str | None) -> Any:
    if name is not None:
        return given.get(name)
    return next((value for value in given.values() if handles_of(value)), None)


def _event(kind: str, name: str, ts: float, attrs: Attributes, about: Mapping[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = {"type": kind, "name": name, "ts": ts, **about}
    if attrs:
        event["attrs"] = dict(attrs)
    return event
