"""Looking after a fleet while it serves: an engine that has died is started again with the weights it had.

Requests that it held are sent again by the client, to the engines that are left. An engine that only is busy, paused
or loading weights still answers what it is; one whose model hangs ends itself by SGLang's own watchdog.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from slime_stages.errors import SlimeStagesError
from slime_stages.serving.fleet import Fleet, Member
from slime_stages.serving.router import Router
from slime_stages.stage import say

POLL_SECONDS = 1.0
MISSED_LOOKS = 3
"""Unanswered in a row: then the engine is dead, though its process is there."""

MOST_RESTARTS = 5
"""Attempts in a row to start one engine again."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 120.0


def watch(fleet: Fleet, stopping: threading.Event) -> None:
    """Until `stopping` is set."""
    serving = fleet.config.serving
    next_look = time.monotonic() + (serving.rollout_health_check_first_wait or serving.rollout_health_check_interval)
    while not stopping.wait(POLL_SECONDS):
        is_look = time.monotonic() >= next_look
        if is_look:
            next_look = time.monotonic() + serving.rollout_health_check_interval
        for router in fleet.routers.values():
            if isinstance(router, Router) and not router.is_alive() and not stopping.is_set():
                _restart_router(fleet, router)
        for member in fleet.members:
            if member.is_restarting or member.failed_restarts >= MOST_RESTARTS or stopping.is_set():
                continue
            if is_look:
                look(member, serving.rollout_health_check_timeout)
            if not member.engine.is_alive() or member.missed_looks >= MISSED_LOOKS:
                member.is_restarting = True
                threading.Thread(target=_restart, args=(fleet, member, stopping), daemon=True).start()


def look(member: Member, timeout_seconds: float) -> None:
    """Ask what the engine serves, and remember it for a restart; or count a look that it did not answer."""
    try:
        info = member.engine.model_info(timeout_seconds=timeout_seconds)
    except SlimeStagesError:
        member.missed_looks += 1
        return
    member.missed_looks = 0
    _remember(member, info)


def _remember(member: Member, info: dict[str, object]) -> None:
    member.engine.model, member.engine.weight_version = Path(str(info["model_path"])), str(info["weight_version"])


def _restart(fleet: Fleet, member: Member, stopping: threading.Event) -> None:
    engine, pause = member.engine, FIRST_PAUSE_SECONDS
    say(f"warning: the engine {member.name} ({engine.url}) is dead; it is started again, see {engine.log}")
    router = fleet.routers.get(member.model.name)
    while not stopping.is_set():
        try:
            if router is not None:
                with suppress(SlimeStagesError):
                    router.remove(engine.url)
            engine.stop()
            _take_newest_weights(fleet, member)
            engine.start(port_of(engine.url))  # its old address is known to clients
            fleet.register(member)
        except SlimeStagesError as error:
            member.failed_restarts += 1
            if stopping.is_set():
                return
            left = MOST_RESTARTS - member.failed_restarts
            say(f"warning: the engine {member.name} does not start: {error} ({left} attempts left)")
            if not left:
                break
            stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            member.failed_restarts = member.missed_looks = 0
            say(f"the engine {member.name} is back: {engine.url}")
            fleet.on_change()
            break
    member.is_restarting = False


def _take_newest_weights(fleet: Fleet, member: Member) -> None:
    """Others of the model may have got newer weights since the last look at this one; encoders get none."""
    for other in fleet.members:
        if other is member or other.model is not member.model or other.is_restarting or other.worker_type == "encoder":
            continue
        with suppress(SlimeStagesError):
            _remember(member, other.engine.model_info(timeout_seconds=5.0))
            return


def _restart_router(fleet: Fleet, router: Router) -> None:
    """At its old address, which clients know."""
    say(f"warning: the router {router.url} is dead; it is started again, see {router.log}")
    try:
        router.stop()
        router.start(port_of(router.url))
        for member in fleet.members:
            if fleet.routers.get(member.model.name) is router and not member.is_restarting:
                fleet.register(member)
    except SlimeStagesError as error:
        say(f"warning: the router does not start: {error}")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
