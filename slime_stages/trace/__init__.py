"""Spans of what happened to a sample and when, kept on the sample, as slime's `trace_utils` keeps them.

A sample is traced if it has a trace; `bind_trace` begins one. Where there is none a span costs a look at the sample,
and nothing is ever kept. Tracing never fails the work that it watches.

    sample.trace = {"version": 1, "trace_id": …, "sample_id": …, "group_id": …, "attempt": 0, "events": [
        {"type": "span_start", "name": …, "ts": seconds since 1970, "span_id": …, "parent_span_id": …, "attrs": {…}},
        {"type": "span_end", …}, {"type": "event", …}]}
"""
