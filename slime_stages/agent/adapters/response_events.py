"""The events by which one item of a response comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def item_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Without `output_index` and `sequence_number`, which depend on the items around it."""
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    yield {"type": "response.output_item.added", "item": {**item, **empty, "status": "in_progress"}}
    if item["type"] == "function_call":
        yield from _arguments_events(item)
    for index, part in enumerate(item.get("content") or []):
        yield from ({**event, "content_index": index} for event in _part_events(item["id"], part))
    yield {"type": "response.output_item.done", "item": item}


def _arguments_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, place = "response.function_call_arguments", {"item_id": item["id"]}
    yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
    yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]}


def _part_events(item_id: str, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, place = f"response.{part['type']}", {"item_id": item_id}
    log_probs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": f"{kind}.delta", **place, "delta": part["text"], **log_probs}
    yield {"type": f"{kind}.done", **place, "text": part["text"], **log_probs}
    yield {"type": "response.content_part.done", **place, "part": part}
