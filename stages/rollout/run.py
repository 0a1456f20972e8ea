"""Rollout stage: read the shard's prompts, let the engine answer, write one shard of samples.

Finished groups are journalled as they come, so that after a kill nothing is asked twice. Near the end of its job it
begins nothing that it cannot finish. Where groups may be dropped or left over, earlier iterations hand some over to
this one, and it hands over to a later one: every prompt is kept, dropped for a reason, or carried.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from slime_stages.config.hooks import generation_function
from slime_stages.progress import Progress
from slime_stages.stage import StageCall
from stages.rollout.ask import Generation, own_generate
from stages.rollout.engines import ready_engines
from stages.rollout.function import generate_by_function
from stages.rollout.hooks import load_hooks
from stages.rollout.pace import Pace
from stages.rollout.shard import Shard, manifest_path_of, open_shard
from stages.rollout.stream import run_stream


def run(call: StageCall) -> Path:
    """Make shard `call.shard` of iteration `call.iteration`, or those up to `call.until`; the path of its manifest."""
    if call.until is not None:
        return run_stream(call)
    with open_shard(call) as shard:
        if shard is None:
            return manifest_path_of(call)
        with shard.counted_if_drained():
            if not shard.work.is_done():
                _generate(shard)
            return shard.commit()


def _generate(shard: Shard) -> None:
    """Ask the engines until enough groups are kept; or have the user's function do all of it."""
    stage, work = shard.stage, shard.work
    if (function := generation_function(stage.config, stage.call.split)) is not None:
        work.metrics |= generate_by_function(stage, work, function)
        return
    load_hooks(stage.config)
    generate = own_generate(stage.config, stage.call.split)
    with ExitStack() as stack:
        with stage.timed("engine"):
            served = stack.enter_context(ready_engines(stage))
        with stage.timed("generate"), Progress(stage.call.title, total=work.selection.wanted, unit="groups") as bar:
            work.on_group = Pace(bar, done=len(work.selection.kept))
            work.begin_clock()
            asyncio.run(Generation(stage=stage, served=served, generate=generate).finish(work))
    work.check()
