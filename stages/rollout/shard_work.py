"""The work of one shard: what it begins with, what is journalled on the way, and what it ends with."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slime_stages.config import Config
from slime_stages.drain import count_progress
from slime_stages.errors import RetryableError, SlimeStagesError
from slime_stages.generation.sampling import sampling_of
from slime_stages.lineage import command, inheritance
from slime_stages.prompts.table import PromptTable
from slime_stages.run.carry import Inheritance, Stream, read_groups
from slime_stages.run.journal import Entry, Journal
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.stage import Stage
from stages.rollout.hooks import buffer_filter
from stages.rollout.judging import Verdict
from stages.rollout.new_group import new_group
from stages.rollout.selection import UNFINISHED, Group, Selection, is_finished
from stages.rollout.user_source import UserSource, user_source_of


@dataclass(slots=True, kw_only=True)
class ShardWork:
    """Keeps what becomes of the groups of a shard, on disk and in mind."""

    selection: Selection
    stream: Stream
    journal: Journal
    is_judged: bool
    """Groups are scored, which is journalled too."""
    saves_unfinished: bool
    deadline_seconds: float | None
    spent_seconds: float = 0.0
    """Of the deadline's, by earlier attempts that have kept a group: one that has not begins it anew."""
    on_group: Callable[[Group, int], None] = lambda group, kept: None
    """Told of every finished group, and of how many are kept."""
    source: UserSource | None = None
    """Where prompts come from, if not from the prompt table."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What a rollout function of the user's says of the shard."""
    _started: float = field(default_factory=time.time)

    def next(self) -> Group | None:
        return self.selection.next()

    async def record(self, group: Group) -> float:
        seconds = await self.journal.append_beside(group)
        count_progress()
        return seconds

    def record_now(self, group: Group) -> None:
        """The same where nothing else goes on."""
        self.journal.append(group)
        count_progress()

    def take(self, group: Group, verdict: Verdict) -> None:
        outcome = self.selection.take(group, verdict)
        if self.is_judged:
            rewards = [sample.reward for sample in group]
            self.journal.note(group, {"keep": outcome.keep, "reason": outcome.reason, "rewards": rewards})
        self.on_group(group, len(self.selection.kept))

    def leave(self, group: Group) -> None:
        """Without `partial_rollout` an unfinished group was never begun."""
        self.selection.leave(group)
        if self.saves_unfinished and not is_finished(group) and any(sample.response_length for sample in group):
            self.journal.append(group, is_finished=False)
            count_progress()

    def is_done(self) -> bool:
        return self.selection.is_done or (bool(self.selection.kept) and time.time() >= self.stop_time())

    def stop_time(self) -> float:
        if self.deadline_seconds is None:
            return float("inf")
        return self._started + self.deadline_seconds - self.spent_seconds

    def begin_clock(self) -> None:
        """The engines are ready: seconds of generating count from here."""
        self._started = time.time()
        if self.deadline_seconds is not None:
            self.journal.begin()

    def check(self) -> None:
        """DataError or RetryableError if there are not enough groups."""
        if self.is_done():
            return
        if time.time() >= self.stop_time():
            raise RetryableError(
                f"not one group was finished and kept within rollout_deadline = {self.deadline_seconds:g} s",
                hint="raise --rollout-deadline, or type the same command again: what was finished is in the journal",
            )
        raise self.selection.exhausted()

    def finished_groups(self) -> list[Group]:
        """In the order of their prompts, dropped and surplus ones too."""
        made = self.selection
        return by_prompt([*made.kept, *made.surplus, *made.dropped])

    def upcoming(self, count: int) -> list[Group]:
        """Copies of the next groups that would be asked, which they are not by this."""
        first = self.selection.following
        return [self.selection.fresh(number) for number in range(first, first + count)]


def work_of(stage: Stage, journal: Journal, prompts: PromptTable) -> ShardWork:
    """The work of the shard as earlier attempts, and earlier iterations, have left it."""
    plan, config, shard = stage.plan, stage.config, stage.call.shard or 0
    source = user_source_of(stage)

    def from_table(number: int) -> Group:
        return new_group(plan, config, prompts, begins.stream.position(number))

    begins = _own_slice(plan, shard) if plan.carry_from is None else inheritance(stage.run, plan, shard)
    size = plan.shards[shard].stop - plan.shards[shard].start
    selection = Selection(
        wanted=size,
        first=begins.first,
        fresh=source.group if source else from_table,
        taken=_taken(stage.run, begins, config, plan),
        shows_dropped=config.rollout.rollout_all_samples_process_path is not None,
        **_limits(config, size, plan),
    )
    entries = [_with_rewards(entry) for entry in journal.entries()]
    is_judged = config.rollout.scores and plan.split == "train"
    selection.restore(entries, begins.stream.number, is_judged=is_judged)
    deadline = config.rollout.rollout_deadline if plan.carry_from is not None else None
    return ShardWork(
        selection=selection,
        stream=begins.stream,
        journal=journal,
        is_judged=is_judged,
        saves_unfinished=config.rollout.partial_rollout and plan.carry_from is not None,
        source=source,
        deadline_seconds=deadline,
        spent_seconds=journal.seconds() if deadline is not None and selection.kept else 0.0,
    )


def by_prompt(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group[0].group_index or 0, group[0].index or 0))


def _limits(config: Config, size: int, plan: Plan) -> dict[str, Any]:
    """How many groups are asked and waited for."""
    rollout = config.rollout
    if plan.carry_from is None:
        return {"enough": size, "chunk": max(1, size), "most_refills": 0}
    share = (rollout.over_sampling_batch_size or rollout.rollout_batch_size) / rollout.rollout_batch_size
    chunk = math.ceil(share * size - 1e-9)
    limits: dict[str, Any] = {
        "enough": math.ceil(rollout.rollout_quorum * size - 1e-9),
        "chunk": chunk,
        "most_refills": rollout.rollout_max_refills,
    }
    if rollout.rollout_streaming:  # one prompt at a time, as often as chunks would be asked and the window is filled
        most = size + chunk * (1 + rollout.rollout_max_refills)
        limits |= {"window": chunk, "chunk": 1, "most_refills": most}
    choose = buffer_filter(config)
    return limits if choose is None else {**limits, "choose": choose}


def _own_slice(plan: Plan, shard: int) -> Inheritance:
    stream = Stream.of(plan, shard, base=0)
    base = plan.shards[0].start // max(1, stream.batch)
    return Inheritance(taken=(), read=(), stream=Stream.of(plan, shard, base=base), first=0)


def _taken(run: RunDir, begins: Inheritance, config: Config, plan: Plan) -> list[Group]:
    groups: list[Group] = []
    for hand_over in begins.taken:
        try:
            groups += read_groups(hand_over)
        except SlimeStagesError as error:
            error.hint = command(run, "rollout", hand_over.iteration, hand_over.shard, force=True)
            raise
    for sample in (sample for group in groups for sample in group if Status(sample.status) in UNFINISHED):
        _refresh(sample, config, plan)
    return groups


def _refresh(sample: Sample, config: Config, plan: Plan) -> None:
    """What is asked now is asked as the config says now; the seed stays the sample's. Without tokens to go on from, or
    leave to, it is a new one."""
    seed = (sample.sampling_params or {}).get("sampling_seed", 0)
    sample.sampling_params = sampling_of(config, plan.split).params(seed)


def _with_rewards(entry: Entry) -> Entry:
    if entry.note is None:
        return entry
    for sample, reward in zip(entry.samples, entry.note["rewards"], strict=True):
        sample.reward = copy.copy(reward)
    return entry
