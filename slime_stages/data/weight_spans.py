"""Which version of the weights wrote which tokens of a response, where more than one did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SPANS_KEY = "weight_spans"
"""In a sample's metadata: `[version, first response token, one past the last]`, in order."""

Span = list[Any]


def versions_told(meta_info: Mapping[str, Any]) -> list[str]:
    """The versions that an engine has named for the tokens of one answer, in the order in which they wrote."""
    told = meta_info.get("weight_versions") or [{"version": meta_info["weight_version"]}]
    return [_number(span["version"]) for span in told]


def spans_with(
    known: Sequence[Span], earlier: Sequence[str], meta_info: Mapping[str, Any], response_length: int
) -> list[Span]:
    """The spans of a response at whose end an answer was appended; none while one version has written all of it, and
    from an engine that tells none.

    `earlier`: versions of the answers before, whose `known` spans are empty as long as they are one.
    """
    told = meta_info.get("weight_versions") or []
    if not told:
        return []
    start = response_length - told[-1]["end"]
    new = [[_number(span["version"]), start + span["start"], start + span["end"]] for span in told]
    if not known and len({*earlier, *(span[0] for span in new)}) < 2:
        return []
    before = list(known) or ([[earlier[-1], 0, start]] if start else [])
    return [*before, *new]


def _number(label: Any) -> str:
    """Of a label such as `12@0a1b2c3d`, which says behind the number which weights exactly."""
    return str(label).partition("@")[0]
