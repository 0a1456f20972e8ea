"""Rollout stage: read the plan's slice of the prompts, let the engine answer, write one shard of samples.

Finished groups are journalled as they come, so that after a kill nothing is asked twice. Near the end of its job it
begins nothing that it cannot finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slime_stages.content import content_digest
from slime_stages.drain import Drained, count_progress, uninterrupted
from slime_stages.journal import Journal
from slime_stages.lineage import journal_of, rollout_inputs, shard_manifest_path
from slime_stages.plugins import load_function
from slime_stages.prompts.table import read_prompt_table
from slime_stages.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.sample_table import write_samples
from slime_stages.schema import ROLLOUT
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan
from stages.rollout.ask import GENERATE_SIGNATURE, Generation, new_group
from stages.rollout.engines import ready_engines
from stages.rollout.metrics import rollout_counts, rollout_metrics


def run(call: StageCall) -> Path:
    """Make shard `call.shard` of iteration `call.iteration`; returns the path of its manifest."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration, call.split)
    config = read_config(run_dir, plan.config_revision)
    path = shard_manifest_path(run_dir, plan, "rollout", call.shard)
    journal = journal_of(run_dir, plan, config, call)
    stage = open_stage(call, rollout_inputs(run_dir, plan), plan=plan, config=config, path=path)
    if stage is None:
        journal.discard()
        return path

    with journal, _counted_in(journal, stage):
        groups = _finish_groups(stage, journal)
        with uninterrupted(last=True):
            manifest = _write(stage, [sample for group in groups for sample in group])
            journal.discard()
    return manifest


@contextmanager
def _counted_in(journal: Journal, stage: Stage) -> Iterator[None]:
    """Has a drain tell how much of the shard the next attempt finds."""
    try:
        yield
    except Drained as drained:
        shard = stage.plan.shards[stage.call.shard or 0]
        count = f"{journal.group_count()} of {shard.stop - shard.start} groups are in the journal"
        raise Drained(drained.reason, f"drained ({drained.reason}): {count}; the same command goes on there") from None


def _finish_groups(stage: Stage, journal: Journal) -> list[list[Sample]]:
    """Every group of the shard, in the order of the plan: from the journal, or asked for now."""
    shard = stage.plan.shards[stage.call.shard or 0]
    prompts = read_prompt_table(stage.run.prompts_path(stage.call.split))
    groups = {group[0].group_index: group for group in journal.finished_groups()}
    missing = [position for position in range(shard.start, shard.stop) if position not in groups]

    def record(group: list[Sample]) -> None:
        journal.append(group)
        count_progress()

    if missing:
        new = [new_group(stage.plan, stage.config, prompts, position) for position in missing]
        custom = stage.config.rollout.custom_generate_function_path
        generate = load_function(custom, like=GENERATE_SIGNATURE) if custom else None
        with ExitStack() as stack:
            with stage.timed("engine"):
                served = stack.enter_context(ready_engines(stage))
            with stage.timed("generate"):
                generation = Generation(stage=stage, served=served, generate=generate, record=record)
                for group in asyncio.run(generation.finish(new, already_done=len(groups))):
                    groups[group[0].group_index] = group
    return [groups[position] for position in range(shard.start, shard.stop)]


def _write(stage: Stage, samples: list[Sample]) -> Path:
    shard, plan = stage.call.shard or 0, stage.plan
    name = stage.run.shard_path("rollout", plan.iteration, shard, plan.shard_count, stage.call.split).name
    with stage.output(name) as temporary:
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
            rows=len(samples),
            tokens=sum(len(sample.tokens) for sample in samples),
            content=content,
            counts=rollout_counts(samples, issued=plan.shards[shard].stop - plan.shards[shard].start),
            metrics=rollout_metrics(samples, stage.seconds.get("generate", 0.0)),
        )
