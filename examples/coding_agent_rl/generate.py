"""A custom generate function: an agent mends a task's code in a sandbox, tests in a fresh one say how well."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from examples.coding_agent_rl.service import Service, service_of
from examples.coding_agent_rl.task import Task
from slime_stages.agent.sandbox.protocol import Sandbox
from slime_stages.errors import DataError, InternalError, RetryableError
from slime_stages.sample import Sample, Status

_POLL_SECONDS = 0.5


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Sample]:
    """The samples of one run of the agent, each with the reward; one that failed if nothing can be trained on.

    An evaluation gets the last of them.
    """
    service = service_of(args)
    # Nobody else can name the session: a sandbox reaches no other agent's.
    session = secrets.token_urlsafe(24)
    service.adapter.open_session(
        session, sampling_defaults=sampling_params, max_context_tokens=args.rollout_max_context_len
    )
    try:
        async with asyncio.timeout(service.settings.guard_seconds), _ended_with_the_rollout(args):
            task = Task.of(sample.metadata)
            reward, notes = await _solve(service, task, sample, session)
        made = await service.adapter.finish_session(
            session, base_sample=sample, reward=reward, extra_metadata={**sample.metadata, **notes}
        )
    except TimeoutError:
        return [_failed(sample, f"not done within {service.settings.guard_seconds:g} s")]
    except (DataError, InternalError, RetryableError) as error:
        return [_failed(sample, error.message)]
    finally:
        await service.adapter.drop_session(session)
    if not made:
        return [_failed(sample, f"the agent asked nothing (exit code {notes['agent_exit_code']})")]
    return made[-1:] if evaluation else made


async def _solve(service: Service, task: Task, sample: Sample, session: str) -> tuple[float, dict[str, Any]]:
    """The reward, and what to note of the run. A code of the agent other than 0 does not make it void."""
    settings = service.settings
    log = Path(settings.swe_log_folder, f"{sample.index}.jsonl").absolute() if settings.swe_log_folder else None
    place = {"image": task.image, "workdir": task.workdir, "log": log}
    async with _booted(service, place) as sandbox:
        await service.harness.install_cli(sandbox)
        await task.prepare(sandbox)
        await task.state(sandbox)
        code = await service.harness.run(
            sandbox,
            workdir=task.workdir,
            session_id=session,
            adapter_url=service.url,
            time_budget_sec=settings.swe_agent_time_budget_sec,
            prompt=settings.swe_prompt,
        )
        diff = await task.diff(sandbox)
    async with _booted(service, place) as sandbox:
        reward, notes = await task.grade(sandbox, diff, settings.swe_eval_timeout_sec)
    return reward, {"agent_exit_code": code, "instance_id": task.instance_id, "diff": diff, **notes}


@contextlib.asynccontextmanager
async def _booted(service: Service, place: dict[str, Any]) -> AsyncIterator[Sandbox]:
    """A sandbox, tried again where it does not start."""
    async with contextlib.AsyncExitStack() as stack:
        for attempt in range(service.settings.swe_boot_retries + 1):
            try:
                sandbox = await stack.enter_async_context(service.sandboxes.open(**place))
                break
            except RetryableError:
                if attempt == service.settings.swe_boot_retries:
                    raise
        yield sandbox


@contextlib.asynccontextmanager
async def _ended_with_the_rollout(args: Any) -> AsyncIterator[None]:
    """When the rollout drains, an agent at work is stopped, and its task is asked again in another iteration."""
    mine = asyncio.current_task()
    assert mine is not None

    async def watch() -> None:
        while not getattr(args, "is_ending", bool)():
            await asyncio.sleep(_POLL_SECONDS)
        mine.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not watching.done():
            raise
        mine.uncancel()
        raise InterruptedError("the rollout is ending") from None
    finally:
        watching.cancel()


def _failed(sample: Sample, reason: str) -> Sample:
    """It trains nothing and has no reward: that the machine failed says nothing of the model."""
    sample.status, sample.remove_sample = Status.FAILED, True
    sample.metadata = {**sample.metadata, "abort_reason": reason}
    return sample
