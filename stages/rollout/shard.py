"""A shard that is being made: what it begins with, what it keeps of the work, and its commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_stages.data.content import content_digest
from slime_stages.data.sample_table import write_samples
from slime_stages.data.schema import ROLLOUT
from slime_stages.drain import Drained, uninterrupted
from slime_stages.lineage import journal_of, rollout_inputs, shard_manifest_path
from slime_stages.prompts.table import read_prompt_table
from slime_stages.run.carry import STAGE, write_groups
from slime_stages.run.journal import Journal
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan
from stages.rollout.hooks import filter_samples, process_all_samples
from stages.rollout.metrics import drop_metrics, rollout_counts, rollout_metrics
from stages.rollout.shard_work import ShardWork, by_prompt, work_of


def manifest_path_of(call: StageCall) -> Path:
    """Where the manifest of a call's shard lies, or will."""
    run = RunDir(call.run)
    return shard_manifest_path(run, read_run_plan(run, call.iteration, call.split), "rollout", call.shard)


@contextmanager
def open_shard(call: StageCall) -> Iterator[Shard | None]:
    """The shard with what earlier attempts and earlier iterations have left of it; None if it is committed."""
    run = RunDir(call.run)
    plan = read_run_plan(run, call.iteration, call.split)
    config = read_config(run, plan.config_revision)
    path = shard_manifest_path(run, plan, "rollout", call.shard)
    journal = journal_of(run, plan, config, call)
    stage = open_stage(call, rollout_inputs(run, plan, call.shard or 0), plan=plan, config=config, path=path)
    if stage is None:
        journal.discard()
        yield None
        return
    with journal:
        work = work_of(stage, journal, read_prompt_table(run.prompts_path(call.split)))
        yield Shard(stage=stage, journal=journal, work=work)


@dataclass(slots=True, kw_only=True)
class Shard:
    """Groups on their way into one file."""

    stage: Stage
    journal: Journal
    work: ShardWork

    @contextmanager
    def counted_if_drained(self) -> Iterator[None]:
        """Has a drain tell how much of the shard the next attempt finds."""
        try:
            yield
        except Drained as drained:
            slice_ = self.stage.plan.shards[self.stage.call.shard or 0]
            wanted = f" of {slice_.stop - slice_.start}" if self.stage.plan.carry_from is None else ""
            count = f"{self.journal.group_count()}{wanted} groups are in the journal"
            message = f"drained ({drained.reason}): {count}; the same command goes on there"
            raise Drained(drained.reason, message) from None

    def commit(self) -> Path:
        """Publish what is kept, and what is left over; returns the path of the manifest."""
        groups = self._chosen()
        with uninterrupted(last=True):
            manifest = self._write([sample for group in groups for sample in group])
            self.journal.discard()
        return manifest

    def _chosen(self) -> list[list[Sample]]:
        """The kept groups in the order of their prompts, after the user's functions have seen them."""
        groups = by_prompt(self.work.selection.kept)
        if self.stage.call.split == "train":
            filter_samples(self.stage.config, groups)
            process_all_samples(self.stage.config, self.work.finished_groups(), self.work.upcoming)
        return groups

    def _write(self, samples: list[Sample]) -> Path:
        stage, work, plan = self.stage, self.work, self.stage.plan
        shard, prompts = stage.call.shard or 0, work.selection.counts()
        name = stage.run.shard_path("rollout", plan.iteration, shard, plan.shard_count, stage.call.split).name
        with stage.output(name) as temporary, self._hand_over() as (folders, outputs):
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
            seconds = stage.seconds.get("generate", 0.0)
            return stage.commit(
                data=temporary,
                name=name,
                folders=folders,
                rows=len(samples),
                tokens=sum(len(sample.tokens) for sample in samples),
                content=content,
                counts=rollout_counts(samples, prompts, carries=plan.carry_from is not None),
                metrics=rollout_metrics(samples, seconds) | drop_metrics(prompts) | work.metrics,
                outputs=outputs,
            )

    @contextmanager
    def _hand_over(self) -> Iterator[tuple[Mapping[Path, Path], dict[str, Any]]]:
        """What is left over, as a file to commit with the shard, and what the manifest says of it."""
        stage, work, plan = self.stage, self.work, self.stage.plan
        if work.source is not None:
            with work.source.saved(stage.manifest_path.parent, asked=work.selection.following) as (folder, record):
                yield {work.source.place: folder}, record
            return
        if plan.carry_from is None:
            yield {}, {}
            return
        shard, selection = stage.call.shard or 0, work.selection
        place = stage.run.shard_path(STAGE, plan.iteration, shard, plan.shard_count)
        place.parent.mkdir(parents=True, exist_ok=True)
        with stage.output(f"{STAGE}-{place.name}") as temporary:
            groups, following = selection.carried, selection.following
            record = write_groups(temporary, groups, plan=plan, shard=shard, stream=work.stream, following=following)
            yield {place: temporary}, {STAGE: record}
