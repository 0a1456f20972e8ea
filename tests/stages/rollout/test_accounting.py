"""Whatever order groups are finished, dropped, cut short, drained or killed in: each prompt ends exactly once."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slime_stages.run.carry import Stream, begun_anew, hand_over_of, read_groups, write_groups
from slime_stages.run.journal import Journal
from slime_stages.run.manifest import Manifest
from slime_stages.run.plan import Plan, plan_shards
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from stages.rollout.judging import Verdict
from stages.rollout.selection import Group, Selection
from stages.rollout.shard_work import ShardWork

BATCH, SHARDS, ITERATIONS = 4, 2, 3
EVENTS = (*["begin"] * 8, *["good"] * 5, *["bad"] * 3, "unjudged", "cut", "kill")


def plan_of(iteration: int, shards: int = SHARDS) -> Plan:
    return Plan(
        run_id="r",
        iteration=iteration,
        config_revision=0,
        policy_version=iteration,
        prompts_digest="p",
        n_samples_per_prompt=1,
        seed=0,
        shuffle=False,
        shards=plan_shards(iteration * BATCH, BATCH, shards),
        carry_from=(iteration - 1,) if iteration else (),
        stream_step=1,
    )


@dataclass
class Shard:
    """One shard in one iteration, by as many attempts as it takes; what happens is up to chance."""

    chance: Random
    run: RunDir
    plan: Plan
    number: int
    stream: Stream
    first: int
    taken: list[Group]
    kept: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    answered: Counter[int] = field(default_factory=Counter)
    """Finished answers by position: none is asked for twice."""

    def make(self, path: Path) -> Manifest:
        """The manifest, once an attempt has got to its end."""
        while (work := self._attempt()) is None:
            pass
        counts = work.selection.counts()
        self.kept = [group[0].group_index or 0 for group in work.selection.kept]
        assert counts["kept"] == len(self.kept) >= self._size
        self.dropped = [group[0].group_index or 0 for group in work.selection.dropped]
        path.parent.mkdir(parents=True, exist_ok=True)
        groups, following = work.selection.carried, work.selection.following
        record = write_groups(path, groups, plan=self.plan, shard=self.number, stream=self.stream, following=following)
        work.journal.discard()
        return Manifest(
            kind="rollout", run_id="r", iteration=self.plan.iteration, shard=self.number, outputs={"carry": record}
        )

    def _attempt(self) -> ShardWork | None:
        """None if it was killed."""
        folder = self.run.journal_path(self.plan.iteration, self.number)
        with Journal(folder, iteration=self.plan.iteration, shard=self.number, fingerprint="f") as journal:
            work = self._work(journal)
            running: list[Group] = []
            while not work.is_done():
                if not self._step(work, running):
                    return None
            for group in running:
                work.leave(group)
            return work

    def _step(self, work: ShardWork, running: list[Group]) -> bool:
        """One event; False if it was a kill."""
        event = self.chance.choice(EVENTS)
        if event == "kill":
            return False
        if event == "begin" or not running:
            if (group := work.next()) is not None:
                running.append(group)
            return True
        group = running.pop(self.chance.randrange(len(running)))
        if event == "cut":
            if group[0].status != Status.COMPLETED:
                _write(group, Status.ABORTED)
            work.leave(group)
            return False  # a drain: unfinished groups are journalled, the attempt ends
        if group[0].status != Status.COMPLETED:
            self.answered[group[0].group_index or 0] += 1
            _write(group, Status.COMPLETED)
        work.record_now(group)
        if event == "unjudged":
            return False
        work.take(group, Verdict(keep=event == "good", reason="bad"))
        return True

    def _work(self, journal: Journal) -> ShardWork:
        selection = Selection(
            wanted=self._size,
            enough=self._size,
            chunk=self._size + 1,
            most_refills=1000,
            fresh=lambda number: [_fresh(self.stream.position(number))],
            first=self.first,
            taken=[[Sample.from_dict(sample.to_dict()) for sample in group] for group in self.taken],
            shows_dropped=True,
        )
        selection.restore(journal.entries(), self.stream.number, is_judged=True)
        return ShardWork(
            selection=selection,
            stream=self.stream,
            journal=journal,
            is_judged=True,
            saves_unfinished=True,
            deadline_seconds=None,
        )

    @property
    def _size(self) -> int:
        return self.plan.shards[self.number].stop - self.plan.shards[self.number].start


def _fresh(position: int) -> Sample:
    return Sample(group_index=position, index=position, tokens=[1, 2])


def _write(group: Group, status: Status) -> None:
    """One more token; a finished group has its reward, so that it need not be judged by its kind."""
    sample = group[0]
    sample.append_response_tokens(None, tokens=[5], log_probs=[-1.0])
    sample.status = status


@given(seed=st.integers(0, 2**32))
@example(seed=178119260).via("cut while a finished group that was handed over waits for its verdict")
@settings(max_examples=40, deadline=None)
def test_every_prompt_ends_exactly_once_over_iterations_kills_drains_and_another_number_of_shards(seed: int) -> None:
    chance = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        ended = Counter[int]()
        answered = Counter[int]()
        manifests: list[Manifest] = []
        before: Plan | None = None
        for iteration in range(ITERATIONS):
            plan = plan_of(iteration, chance.choice((SHARDS, SHARDS, 1)))
            old = [hand_over_of(run, before, shard, manifests[shard]) for shard in range(len(manifests)) if before]
            is_same = before is not None and before.shard_count == plan.shard_count
            manifests = []
            for number in range(plan.shard_count):
                own = [found for found in old if found.shard % plan.shard_count == number]
                shard = Shard(
                    chance=chance,
                    run=run,
                    plan=plan,
                    number=number,
                    stream=own[0].stream if is_same else begun_anew(plan, number, old),
                    first=own[0].next if is_same else 0,
                    taken=[group for found in own for group in read_groups(found)],
                )
                manifests.append(shard.make(run.shard_path("carry", iteration, number, plan.shard_count)))
                ended.update(shard.kept)
                ended.update(shard.dropped)
                answered.update(shard.answered)
            before = plan
        assert before is not None
        left = [hand_over_of(run, before, shard, manifest) for shard, manifest in enumerate(manifests)]
        ended.update(group[0].group_index or 0 for found in left for group in read_groups(found))

    assert set(ended.values()) == {1}
    assert set(answered.values()) <= {1}
    assert answered.keys() <= ended.keys()
