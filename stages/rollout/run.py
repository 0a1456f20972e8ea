"""Rollout stage: read the shard's prompts, let the engine answer, write one shard of samples.

Finished groups are journalled as they come, so that after a kill nothing is asked twice. Near the end of its job it
begins nothing that it cannot finish. Where groups may be dropped or left over, earlier iterations hand some over to
this one, and it hands over to a later one: every prompt is kept, dropped for a reason, or carried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from slime_stages.carry import STAGE, write_groups
from slime_stages.config.hooks import generation_function
from slime_stages.content import content_digest
from slime_stages.drain import Drained, uninterrupted
from slime_stages.journal import Journal
from slime_stages.lineage import journal_of, rollout_inputs, shard_manifest_path
from slime_stages.plugins import load_function
from slime_stages.progress import Progress
from slime_stages.prompts.table import read_prompt_table
from slime_stages.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.sample_table import write_samples
from slime_stages.sampling import generate_path_of
from slime_stages.schema import ROLLOUT
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan
from stages.rollout.ask import GENERATE_SIGNATURE, Generation
from stages.rollout.engines import ready_engines
from stages.rollout.function import generate_by_function
from stages.rollout.hooks import filter_samples, load_hooks, process_all_samples
from stages.rollout.metrics import drop_metrics, rollout_counts, rollout_metrics
from stages.rollout.pace import Pace
from stages.rollout.shard_work import ShardWork, by_prompt, work_of


def run(call: StageCall) -> Path:
    """Make shard `call.shard` of iteration `call.iteration`; returns the path of its manifest."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration, call.split)
    config = read_config(run_dir, plan.config_revision)
    path = shard_manifest_path(run_dir, plan, "rollout", call.shard)
    journal = journal_of(run_dir, plan, config, call)
    inputs = rollout_inputs(run_dir, plan, call.shard or 0)
    stage = open_stage(call, inputs, plan=plan, config=config, path=path)
    if stage is None:
        journal.discard()
        return path

    with journal, _counted_in(journal, stage):
        work = work_of(stage, journal, read_prompt_table(run_dir.prompts_path(call.split)))
        if not work.is_done():
            _generate(stage, work)
        groups = _chosen(stage, work)
        with uninterrupted(last=True):
            manifest = _write(stage, work, [sample for group in groups for sample in group])
            journal.discard()
    return manifest


@contextmanager
def _counted_in(journal: Journal, stage: Stage) -> Iterator[None]:
    """Has a drain tell how much of the shard the next attempt finds."""
    try:
        yield
    except Drained as drained:
        shard = stage.plan.shards[stage.call.shard or 0]
        wanted = f" of {shard.stop - shard.start}" if stage.plan.carry_from is None else ""
        count = f"{journal.group_count()}{wanted} groups are in the journal"
        raise Drained(drained.reason, f"drained ({drained.reason}): {count}; the same command goes on there") from None


def _generate(stage: Stage, work: ShardWork) -> None:
    """Ask the engines until enough groups are kept; or have the user's function do all of it."""
    if (function := generation_function(stage.config, stage.call.split)) is not None:
        work.metrics |= generate_by_function(stage, work, function)
        return
    load_hooks(stage.config)
    custom = generate_path_of(stage.config, stage.call.split)
    generate = load_function(custom, like=GENERATE_SIGNATURE) if custom else None
    with ExitStack() as stack:
        with stage.timed("engine"):
            served = stack.enter_context(ready_engines(stage))
        with stage.timed("generate"), Progress(stage.call.title, total=work.selection.wanted, unit="groups") as bar:
            work.on_group = Pace(bar, done=len(work.selection.kept))
            work.begin_clock()
            asyncio.run(Generation(stage=stage, served=served, generate=generate).finish(work))
    work.check()


def _chosen(stage: Stage, work: ShardWork) -> list[list[Sample]]:
    """The kept groups in the order of their prompts, after the user's functions have seen them."""
    groups = by_prompt(work.selection.kept)
    if stage.call.split == "train":
        filter_samples(stage.config, groups)
        process_all_samples(stage.config, work.finished_groups(), work.upcoming)
    return groups


def _write(stage: Stage, work: ShardWork, samples: list[Sample]) -> Path:
    shard, plan, prompts = stage.call.shard or 0, stage.plan, work.selection.counts()
    name = stage.run.shard_path("rollout", plan.iteration, shard, plan.shard_count, stage.call.split).name
    with stage.output(name) as temporary, _hand_over(stage, work) as (folders, outputs):
        with stage.timed("write"):
            write_samples(
                temporary,
                samples,
                iteration=plan.iteration,
                shard=shard,
                split=stage.call.split,
                metadata={"run_id": plan.run_id, "policy_version": str(plan.policy_version), **stage.inputs},
            )
            content = content_digest(temporary, ROLLOUT)
        return stage.commit(
            data=temporary,
            name=name,
            folders=folders,
            rows=len(samples),
            tokens=sum(len(sample.tokens) for sample in samples),
            content=content,
            counts=rollout_counts(samples, prompts, carries=plan.carry_from is not None),
            metrics=rollout_metrics(samples, stage.seconds.get("generate", 0.0)) | drop_metrics(prompts) | work.metrics,
            outputs=outputs,
        )


@contextmanager
def _hand_over(stage: Stage, work: ShardWork) -> Iterator[tuple[Mapping[Path, Path], dict[str, Any]]]:
    """What is left over, as a file to commit with the shard, and what the manifest says of it; nothing without plan."""
    shard, plan = stage.call.shard or 0, stage.plan
    if work.source is not None:
        with work.source.saved(stage.manifest_path.parent, asked=work.selection.following) as (folder, record):
            yield {work.source.place: folder}, record
        return
    if plan.carry_from is None:
        yield {}, {}
        return
    place = stage.run.shard_path(STAGE, plan.iteration, shard, plan.shard_count)
    place.parent.mkdir(parents=True, exist_ok=True)
    with stage.output(f"{STAGE}-{place.name}") as temporary:
        groups, following = work.selection.carried, work.selection.following
        record = write_groups(temporary, groups, plan=plan, shard=shard, stream=work.stream, following=following)
        yield {place: temporary}, {STAGE: record}
