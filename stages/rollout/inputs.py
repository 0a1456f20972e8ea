"""What a shard is made from, waited for by a process that goes on from one iteration to the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slime_stages.errors import MissingInputError, RetryableError
from slime_stages.lineage import command, rollout_inputs
from slime_stages.run.announce import announce
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_run_plan, say
from slime_stages.weights.publish import check_weights

POLL_SECONDS = 1.0
FIRST_REMINDER_SECONDS, LONGEST_PAUSE_SECONDS = 20.0, 300.0
"""Between two reminders that it waits: whoever is to make what is missing may have died."""


async def wait_for_inputs(call: StageCall, seconds: float, *, look: Callable[[], None] = lambda: None) -> None:
    """Return once the plan, its weights and what is handed over are there; RetryableError after so many seconds.

    `look` is called in between, and may raise.
    """
    began, said, pause = time.monotonic(), False, FIRST_REMINDER_SECONDS
    next_reminder = began + pause
    while (missing := await asyncio.to_thread(_missing_input, call)) is not None:
        look()
        if time.monotonic() > began + seconds:
            words = command(RunDir(call.run), call.stage, call.iteration, call.shard)
            raise RetryableError(
                f"{call.title} has waited {seconds:g} s: {missing.message}",
                hint=missing.hint or f"{words}   once it is there; or raise --streaming-wait-seconds",
            )
        if not said:
            say(f"{call.title} waits: {missing.message}")
            said = True
        if time.monotonic() > next_reminder:
            announce(None)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            next_reminder = time.monotonic() + pause
        await asyncio.sleep(POLL_SECONDS)


def _missing_input(call: StageCall) -> MissingInputError | None:
    run = RunDir(call.run)
    try:
        plan = read_run_plan(run, call.iteration)
        rollout_inputs(run, plan, call.shard or 0)
        check_weights(run.weights_path(plan.policy_version))
    except MissingInputError as error:
        return error
    return None
