from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from slime_stages.errors import MissingInputError, UsageError
from slime_stages.launch import rerun
from slime_stages.launch.chain import begin_chain
from slime_stages.launch.chain_state import Chain, read_chain, stop_chain, write_chain
from slime_stages.launch.iterate import Event
from slime_stages.launch.rerun import calls_to_rerun, rerun_as_jobs, rerun_here
from slime_stages.launch.run_stage import StageResult
from slime_stages.launch.states import is_complete
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.slurm import queue
from slime_stages.slurm.listing import JobInfo
from slime_stages.stage import StageCall
from tests.fakes.commands import FakeCommands
from tests.fakes.scheduler import FakeScheduler
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved


@dataclass
class Executor:
    """Makes what stages would make; a rollout says another word each time."""

    small: SmallRun
    titles: list[str] = field(default_factory=list)

    def run(self, call: StageCall) -> StageResult:
        self.titles.append(call.title)
        small, plan = self.small, self.small.plan(call.iteration, call.split)
        if call.stage == "rollout":
            assert call.shard is not None
            samples = made_up_samples(plan, call.shard, word=f"again {len(self.titles)}")
            small.rollout(plan, call.shard, samples=samples, force=call.force)
        elif call.stage == "reward":
            assert call.shard is not None
            small.reward(plan, call.shard)
        else:
            getattr(small, call.stage)(plan)
        return StageResult(exit_code=0, manifest=call.title)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    config = resolved(rollout_batch_size=4, n_samples_per_prompt=2, rollout_shards=2).config
    return SmallRun(run=RunDir(tmp_path / "run"), config=config).start(make_model_folder(tmp_path / "model"))


@pytest.fixture
def executor(small: SmallRun, monkeypatch: pytest.MonkeyPatch) -> Executor:
    executor = Executor(small)
    monkeypatch.setattr(rerun, "LocalExecutor", lambda: executor)
    return executor


def nothing(event: Event) -> None:
    pass


def test_one_shard_is_made_again_although_it_is_fresh(small: SmallRun, executor: Executor) -> None:
    small.complete(0)
    events: list[Event] = []

    calls = calls_to_rerun(small.run, "rollout", 0, 1)
    rerun_here(small.run, calls, downstream=False, on_event=events.append)

    assert executor.titles == ["rollout 0/1"]
    assert [event.manifest for event in events if event.kind == "done"] == ["rollout 0/1"]
    assert not is_complete(small.run, 0)
    assert len(list(small.run.stage_path("rollout", 0).glob("superseded/*/*.parquet"))) == 1


def test_downstream_is_what_became_stale_by_it(small: SmallRun, executor: Executor) -> None:
    small.complete(0)
    rerun_here(small.run, calls_to_rerun(small.run, "rollout", 0, 1), downstream=True, on_event=nothing)

    assert executor.titles == ["rollout 0/1", "reward 0/1", "train 0"]  # it trains to the same policy
    assert is_complete(small.run, 0)


def test_downstream_goes_on_into_later_iterations_while_they_change(
    small: SmallRun, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.complete(0)
    small.evaluate(1, "heldout")
    small.complete(1)
    monkeypatch.setattr(SmallRun, "sync", other_weights)

    rerun_here(small.run, calls_to_rerun(small.run, "sync", 0, None), downstream=True, on_event=nothing)

    assert executor.titles == [
        "sync 0",
        "rollout 1/0 heldout",
        "reward 1/0 heldout",
        "rollout 1/0",
        "rollout 1/1",
        "reward 1/0",
        "reward 1/1",
        "train 1",
    ]


def other_weights(small: SmallRun, plan: object) -> None:
    path = small.run.manifest_path("sync", 0)
    path.write_bytes(read_manifest(path).model_copy(update={"content": "other weights"}).to_bytes())


def test_what_was_never_made_is_not_made(
    small: SmallRun, executor: Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small.plan(0)
    for shard in (0, 1):
        small.rollout(plan, shard)
    small.reward(plan, 0)

    rerun_here(small.run, calls_to_rerun(small.run, "rollout", 0, None), downstream=True, on_event=nothing)

    assert executor.titles == ["rollout 0/0", "rollout 0/1", "reward 0/0"]
    assert "reward 0/1 was not there before" in capsys.readouterr().err


def test_what_cannot_be_meant_is_refused(small: SmallRun) -> None:
    small.complete(0)

    with pytest.raises(UsageError, match=r"rollout 0 has shards 0 to 1; there is no shard 2"):
        calls_to_rerun(small.run, "rollout", 0, 2)
    with pytest.raises(UsageError, match=r"train 0 has no shards; there is no shard 0"):
        calls_to_rerun(small.run, "train", 0, 0)
    with pytest.raises(UsageError, match="there is no stage trian"):
        calls_to_rerun(small.run, "trian", 0, None)
    with pytest.raises(MissingInputError, match="iteration 4 was never begun"):
        calls_to_rerun(small.run, "train", 4, None)


def test_what_it_was_made_from_must_be_kept(small: SmallRun) -> None:
    small.complete(0)
    small.complete(1)
    newest = small.run.weights_path(2)
    newest.mkdir()
    (newest / "weights.json").write_text("{}")

    with pytest.raises(UsageError, match=r"rollout 1/0 cannot be made again: the weights"):
        calls_to_rerun(small.run, "rollout", 1, None)


def test_it_is_not_made_here_while_jobs_would_make_it_too(
    small: SmallRun, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.complete(0)
    write_chain(small.run, Chain(target=2, sbatch_folder="/sbatch"))
    FakeCommands(tmp_path / "bin").install(monkeypatch).say(JobInfo(job_id="100", state="PENDING"))

    with pytest.raises(UsageError, match="has 1 jobs in the queue"):
        rerun_here(small.run, calls_to_rerun(small.run, "rollout", 0, 1), downstream=False, on_event=nothing)
    assert executor.titles == []


def test_the_chain_makes_it_again_and_what_is_stale_by_it(small: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = FakeScheduler(small).install(monkeypatch)
    monkeypatch.setattr(queue, "scheduler_limits", lambda: None)
    for iteration in (0, 1):
        small.plan(iteration)
    begin_chain(small.run, Chain(target=2, sbatch_folder="/nowhere"))
    scheduler.run_all()
    stop_chain(small.run, "cancelled")
    scheduler.order.clear()

    result = rerun_as_jobs(small.run, calls_to_rerun(small.run, "rollout", 1, 0))
    scheduler.run_all()

    assert ("rollout", 1, (0,)) in [(a.stage, a.iteration, a.shards) for a in result.submitted]
    assert "rollout 1/0" in scheduler.order
    assert "rollout 1/1" not in scheduler.order
    assert is_complete(small.run, 1)
    chain = read_chain(small.run)
    assert chain is not None
    assert (chain.target, chain.stopped) == (2, None)


def test_without_a_chain_there_is_no_job_to_make_it(small: SmallRun) -> None:
    small.complete(0)

    with pytest.raises(UsageError, match="has no chain of jobs"):
        rerun_as_jobs(small.run, calls_to_rerun(small.run, "rollout", 0, 1))
    assert is_complete(small.run, 0)
