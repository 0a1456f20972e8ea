"""Scoring samples: what is passed through, what is asked together, and what a reward must look like.

A sample without a reward has null and a status that says why; never 0 in its place.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError, UsageError
from slime_stages.progress import Progress
from slime_stages.rewards.pool import RewardOutcome, RewardPool, RewardTask
from slime_stages.sample import Sample, Status
from slime_stages.trace.handles import is_trace

TASKS_PER_WORKER = 1000
GIVEN, SKIPPED = "given", "skipped"


@dataclass(slots=True)
class Score:
    """The outcome of one sample."""

    reward: float | dict[str, Any] | None
    status: str
    message: str | None = None
    seconds: float = 0.0
    trace: str | None = None
    """What was recorded of its scoring, as JSON."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What says which samples belong together."""

    index: int | None
    group_index: int | None
    rollout_id: int | None


def score(
    samples: Iterable[Sample],
    config: Config,
    *,
    title: str,
    evaluation: bool = False,
    identities: Sequence[Identity] | None = None,
) -> list[Score]:
    """A score for each sample, in order. Rewards that the generate function filled in are passed through.

    With `identities` (one for each sample) samples are taken only as workers become free, and none is kept.
    RetryableError, with what is left, if it takes longer than `reward_shard_timeout`.
    """
    if identities is None:
        samples = list(samples)
        identities = [_identity(sample) for sample in samples]
    scores: dict[int, Score] = {}
    bundles = _bundles(identities, config, group_rm=config.reward.group_rm and not evaluation)
    source = _tasks(samples, scores, bundles)
    if (first := next(source, None)) is not None:
        with (
            Progress(title, total=len(identities), unit="samples") as progress,
            _pool(config, most_workers=len(identities)) as pool,
        ):
            mean = _Mean()
            tasks = itertools.chain([first], source)
            for outcome in pool.score(tasks, seconds=config.reward.reward_shard_timeout):
                for row, reward, trace in zip(
                    map(int, outcome.key.split(",")), outcome.rewards, outcome.traces, strict=True
                ):
                    scores[row] = _checked(reward, trace, outcome, config, evaluation=evaluation)
                    mean.add(number(reward, config, evaluation=evaluation))
                progress.update(len(scores), mean_reward=str(mean))
    return [scores[row] for row in range(len(identities))]


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total, self.count = self.total + value, self.count + 1

    def __str__(self) -> str:
        return f"{self.total / self.count:.3f}" if self.count else "-"


def number(reward: Any, config: Config, *, evaluation: bool = False) -> float | None:
    """The number in a reward; None for no reward, or for a dict without the key asked for."""
    if isinstance(reward, dict):
        key = config.reward.reward_key
        if evaluation and config.reward.eval_reward_key:
            key = config.reward.eval_reward_key
        reward = reward.get(key)
    return None if reward is None else float(reward)


@dataclass(slots=True)
class Scorer:
    """Scores group by group with one pool, as groups are finished; use it as a context manager."""

    config: Config
    _pool: RewardPool | None = None
    _futures: dict[str, Future[RewardOutcome]] = field(default_factory=dict)
    _count: int = 0
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _reader: threading.Thread | None = None
    _error: SlimeStagesError | None = None
    """Why there is no pool any more."""

    async def score(self, samples: Sequence[Sample]) -> list[Score]:
        """A score for each sample of a group, in order. Other groups are scored meanwhile."""
        scores: dict[int, Score] = {}
        bundles = _bundles([*map(_identity, samples)], self.config, group_rm=self.config.reward.group_rm)
        tasks = list(_tasks(samples, scores, bundles))
        futures = [await asyncio.to_thread(self._submit, task) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            outcome = await asyncio.wrap_future(future)
            rows = map(int, task.key.split(","))
            for row, reward, trace in zip(rows, outcome.rewards, outcome.traces, strict=True):
                scores[row] = _checked(reward, trace, outcome, self.config, evaluation=False)
        return [scores[row] for row in range(len(samples))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None and self._reader is not None:
            self._pool.close()
            self._reader.join()

    def _submit(self, task: RewardTask) -> Future[RewardOutcome]:
        """Hand a task to the pool, which is started with the first one."""
        with self._sending:
            if self._error is not None:
                raise self._error
            if self._pool is None:
                self._pool = _pool(self.config)
                self._reader = threading.Thread(target=self._read, args=(self._pool,), name="rewards", daemon=True)
                self._reader.start()
            self._count += 1
            key = str(self._count)
            future = self._futures[key] = Future()
            future.set_running_or_notify_cancel()  # whoever waits may give up; the outcome comes all the same
            self._pool.submit(RewardTask(key=key, samples=task.samples, is_list=task.is_list))
            return future

    def _read(self, pool: RewardPool) -> None:
        try:
            while True:
                outcome = pool.receive()
                self._futures.pop(outcome.key).set_result(outcome)
        except (SlimeStagesError, OSError) as error:  # the pool was closed, or its supervisor is gone
            self._error = error if isinstance(error, SlimeStagesError) else SlimeStagesError(str(error))
            for future in list(self._futures.values()):
                future.set_exception(self._error)


def _pool(config: Config, most_workers: int | None = None) -> RewardPool:
    workers = config.reward.reward_workers or len(os.sched_getaffinity(0))
    return RewardPool(
        vars(config.as_args()),
        workers=workers if most_workers is None else min(workers, most_workers),
        timeout_seconds=config.reward.reward_timeout,
        memory_bytes=int(config.reward.reward_memory_gb * (1 << 30)),
        tasks_per_worker=TASKS_PER_WORKER,
        requests=config.reward.remote_rm_requests,
    )


def _score_without_asking(sample: Sample) -> Score | None:
    if sample.reward is not None:
        return Score(sample.reward, GIVEN)
    if Status(sample.status) in (Status.ABORTED, Status.FAILED, Status.PENDING):
        return Score(None, SKIPPED, f"the sample is {Status(sample.status).value}")
    return None


def _bundles(identities: Sequence[Identity], config: Config, *, group_rm: bool) -> list[tuple[str, int] | None]:
    """For each sample, which others it goes to the run's function with: the siblings of a fan-out, or a whole group.

    Nothing else takes a list: reward types, and functions of single samples, score each sample on its own.
    """
    if not config.as_args().custom_rm_path:
        return [None] * len(identities)
    keys = [("group", each.group_index) if group_rm else ("rollout", each.rollout_id) for each in identities]
    return [None if number is None else (kind, number) for kind, number in keys]


def _tasks(
    samples: Iterable[Sample], scores: dict[int, Score], bundles: Sequence[tuple[str, int] | None]
) -> Iterator[RewardTask]:
    """One task for each plain sample and for each bundle, once its last sample has come. Fills in what is not asked."""
    awaited = Counter(bundles)
    held: dict[tuple[str, int], list[tuple[int, Sample]]] = {}
    for row, (sample, bundle) in enumerate(zip(samples, bundles, strict=True)):
        known = _score_without_asking(sample)
        if known is not None:
            scores[row] = known
        if bundle is None:
            if known is None:
                yield _task([(row, sample)], is_list=False)
            continue
        if known is None:
            held.setdefault(bundle, []).append((row, sample))
        awaited[bundle] -= 1
        if awaited[bundle] == 0 and bundle in held:
            yield _task(held.pop(bundle), is_list=True)


def _task(rows: Sequence[tuple[int, Sample]], *, is_list: bool) -> RewardTask:
    key = ",".join(str(row) for row, _ in rows)
    return RewardTask(key=key, samples=[_as_dict(sample) for _, sample in rows], is_list=is_list)


def _as_dict(sample: Sample) -> dict[str, Any]:
    """A trace travels without the events so far."""
    values = sample.to_dict()
    return {**values, "trace": {**sample.trace, "events": []} if is_trace(sample.trace) else None}


def _identity(sample: Sample) -> Identity:
    return Identity(sample.index, sample.group_index, sample.rollout_id)


def _checked(reward: Any, trace: str | None, outcome: RewardOutcome, config: Config, *, evaluation: bool) -> Score:
    is_read_later = config.algorithm.custom_reward_post_process_path is not None and not evaluation
    if isinstance(reward, dict) and not is_read_later and number(reward, config, evaluation=evaluation) is None:
        keys = ", ".join(reward)
        raise UsageError(
            f"the reward is a dict with {keys}; reward_key is {config.reward.reward_key!r}",
            hint=f"add --reward-key {next(iter(reward), 'KEY')}",
        )
    return Score(reward, outcome.status.value, outcome.message, outcome.seconds, trace)
