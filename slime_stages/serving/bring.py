"""Having engines serve a version of the weights, whose files are compared with their digests before they are loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slime_stages.errors import RetryableError
from slime_stages.serving.encoders import refuse_stale_encoders
from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.speculation import refuse_to_overwrite_draft
from slime_stages.weights.publish import verify_weights
from slime_stages.weights.record import engine_label

POLL_SECONDS = 1.0
IDLE_LOOKS = 2
"""In a row without a request: between two turns of a conversation an engine has nothing to do, either."""


def bring_to(handle: EngineHandle, weights: Path, version: int) -> None:
    """Have one engine serve this version. What it is asked meanwhile waits, what it answers is finished first."""
    label = engine_label(weights, version)
    if handle.version() != label:
        _check_before_loading([handle], weights)
        handle.update_weights(weights, label)


def bring_all(
    handles: Sequence[EngineHandle], weights: Path, version: int, *, wait_until_idle: float | None = None
) -> None:
    """The same for all engines, side by side.

    With `wait_until_idle`, at most so many seconds until nobody uses them; RetryableError if somebody still does.
    """
    label = engine_label(weights, version)
    others = [handle for handle in handles if handle.version() != label]
    if not others:
        return
    if wait_until_idle is not None:
        _wait_until_idle(handles, time.monotonic() + wait_until_idle)
    _check_before_loading(others, weights)
    with ThreadPoolExecutor(len(others)) as pool:
        for done in [pool.submit(handle.update_weights, weights, label) for handle in others]:
            done.result()


def are_as_new(handles: Sequence[EngineHandle], weights: Path, version: int) -> bool:
    """Whether all engines have this version, or a newer one of the run."""
    label = engine_label(weights, version)
    return all(_is_as_new(handle.version(), label, weights) for handle in handles)


def bring_running(handles: Sequence[EngineHandle], weights: Path, version: int) -> None:
    """Have engines go on with this version in the midst of what they are asked; a newer one of the run stays."""
    label = engine_label(weights, version)
    older = [handle for handle in handles if not _is_as_new(handle.version(), label, weights)]
    if not older:
        return
    _check_before_loading(older, weights)
    with ThreadPoolExecutor(len(older)) as pool:
        for done in [pool.submit(handle.update_running, weights, label) for handle in older]:
            done.result()


def _check_before_loading(handles: Sequence[EngineHandle], weights: Path) -> None:
    for handle in handles:
        info = handle.server_info()
        refuse_to_overwrite_draft(handle, info, weights)
        refuse_stale_encoders(handle, info, weights)
    verify_weights(weights)  # last: it reads all of them


def _is_as_new(served: str, label: str, weights: Path) -> bool:
    """Whether the weights that are served are these, or of a later version beside them."""
    number, wanted = served.partition("@")[0], label.partition("@")[0]
    if served == label or not number.isdecimal() or int(number) <= int(wanted):
        return served == label
    folder = weights.with_name(number.zfill(len(weights.name)))
    return folder.is_dir() and served == engine_label(folder, int(number))


def is_idle(handles: Sequence[EngineHandle]) -> bool:
    """Whether no engine works on anything."""
    return not sum(handle.request_count() for handle in handles)


def _wait_until_idle(handles: Sequence[EngineHandle], deadline: float) -> None:
    looks = 0
    while looks < IDLE_LOOKS:
        looks = looks + 1 if is_idle(handles) else 0
        if looks < IDLE_LOOKS:
            if time.monotonic() > deadline:
                version = handles[0].version()
                raise RetryableError(
                    f"other jobs still use the engines, with weights {version}",
                    hint="raise --service-wait-seconds, or let jobs start their own engines: --serving-mode job",
                )
            time.sleep(POLL_SECONDS)
