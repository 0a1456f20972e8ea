"""One shard of every iteration after the other, with a pool of groups that outlasts them.

A shard is committed once it has enough groups, and what runs by then is handed over to the next iteration like anything
that is left over. But it goes on running, and the next shard finds it at work. So each manifest is one that a process
for that shard alone could have made, and a stream that was killed is begun again from the last hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from slime_stages.drain import uninterrupted
from slime_stages.errors import UsageError
from slime_stages.progress import Progress
from slime_stages.run.announce import announce
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall, read_config, read_run_plan
from stages.rollout.admission import Admission
from stages.rollout.ask import Generation, own_generate
from stages.rollout.hooks import load_hooks
from stages.rollout.inputs import wait_for_inputs
from stages.rollout.live_engines import LiveEngines, live_engines
from stages.rollout.pace import Pace
from stages.rollout.shard import Shard, manifest_path_of, open_shard


def run_stream(call: StageCall) -> Path:
    """Make the shards that are missing, from iteration `call.iteration` on; returns the path of the last manifest.

    It ends before `call.until` where the plan of the next iteration has other settings than the groups that run, and
    where there is an output already, of which whoever calls decides.
    """
    wait_seconds = _checked(call)
    later = range(call.iteration + 1, call.until or 0)
    steps = [replace(call, until=None), *(replace(call, iteration=i, until=None, force=False) for i in later)]
    for number, step in enumerate(steps):
        asyncio.run(wait_for_inputs(step, wait_seconds))
        if number and manifest_path_of(step).exists():
            continue
        with open_shard(step) as shard:
            if shard is not None:
                return _streamed(shard, steps[number + 1 :])
    return manifest_path_of(steps[-1])


def _checked(call: StageCall) -> float:
    """Seconds to wait for inputs. UsageError if the rollout does not stream, or has nothing to go on to."""
    run = RunDir(call.run)
    rollout = read_config(run, read_run_plan(run, call.iteration, call.split).config_revision).rollout
    if call.split != "train" or not rollout.rollout_streaming:
        hint = "leave --until out, or begin a run with --rollout-streaming"
        raise UsageError(f"{call.title} does not go on to another iteration", hint=hint)
    if (call.until or 0) <= call.iteration:
        raise UsageError(f"--until {call.until} is not beyond iteration {call.iteration}")
    return rollout.streaming_wait_seconds


def _streamed(shard: Shard, following: Sequence[StageCall]) -> Path:
    config = shard.stage.config
    load_hooks(config)
    with ExitStack() as stack:
        with shard.counted_if_drained(), shard.stage.timed("engine"):
            live = stack.enter_context(live_engines(shard.stage))
        generate = own_generate(config, "train")
        generation = Generation(stage=shard.stage, served=live.served, generate=generate)
        path = asyncio.run(_Stream(live=live, generation=generation, following=following).run(shard))
        with uninterrupted(last=True):
            return path


@dataclass(slots=True, kw_only=True)
class _Stream:
    """The shards that come one after the other, and what they have in common."""

    live: LiveEngines
    generation: Generation
    following: Sequence[StageCall]

    async def run(self, shard: Shard) -> Path:
        """The path of the last manifest; `Drained` if the job ends before."""
        plan = shard.stage.plan
        async with self.generation.admission(shard.work) as admission, admission.open():
            path = await self._made(shard, admission, is_last=not self.following)
            for call in self.following:
                announce(path)
                await wait_for_inputs(
                    call, shard.stage.config.rollout.streaming_wait_seconds, look=admission.check_time
                )
                admission.check_time()
                planned = read_run_plan(RunDir(call.run), call.iteration)
                if not _goes_on(plan, planned) or manifest_path_of(call).exists():
                    break
                with ExitStack() as stack:
                    opened = await asyncio.to_thread(stack.enter_context, open_shard(call))
                    assert opened is not None, "nobody else makes this shard"
                    with opened.stage.timed("engine"):
                        await self.live.bring(opened.stage, look=admission.check_time)
                    admission.work = opened.work
                    self.generation.go_on(opened.stage)
                    path = await self._made(opened, admission, is_last=call is self.following[-1])
        return path

    async def _made(self, shard: Shard, admission: Admission, *, is_last: bool) -> Path:
        """Commit the shard as soon as it has enough groups; the last one cuts short what runs."""
        stage, work = shard.stage, shard.work
        with shard.counted_if_drained():
            with stage.timed("generate"), Progress(stage.call.title, total=work.selection.wanted, unit="groups") as bar:
                work.on_group = Pace(bar, done=len(work.selection.kept), in_flight=lambda: admission.group_count)
                work.begin_clock()
                await admission.fill()
                if is_last or admission.is_closing or not work.is_done():
                    await admission.wind_up()
                else:
                    admission.hand_over()
            admission.check()
            work.check()
            return await asyncio.to_thread(shard.commit)


def _goes_on(plan: Plan, following: Plan) -> bool:
    """Whether the groups of a plan are asked as those of the next one are."""
    return (plan.config_revision, plan.shard_count) == (following.config_revision, following.shard_count)
