"""Tasks of a SLURM job find each other, train as one process does, and end together, however one of them ends.

SLURM's variables are set by hand: two nodes of one task each, both of them this machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slime_stages.config.sections.train import Train
from slime_stages.errors import UsageError
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import StageCall
from slime_stages.weights.partial import saved_steps
from stages.train.slurm import check_process_count, exit_code_of_task, own_name, slurm_ranks, task_count
from tests.e2e.runs import copy_run, leftovers
from tests.stages.train.attempts import KILL, TERM, Attempt, outcome, outcomes
from tests.stages.train.small_runs import run_to_train

MEANS = ("advantage", "log_prob_gap", "entropy", "clip_share", "trained_tokens", "raw_reward")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_prompts: Path) -> RunDir:
    """A run whose trainer is two processes on two nodes."""
    flags = {"actor_num_nodes": 2, "use_distributed_optimizer": True}
    return run_to_train(tmp_path_factory.mktemp("ranks") / "run", tiny_model, tiny_prompts, **flags)


@pytest.fixture(scope="module")
def trained(scored: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same, trained in one go."""
    run = copy_run(scored, tmp_path_factory.mktemp("ranks-trained") / "run")
    assert outcomes(*tasks(run)) == [0, 0], log_of(run)
    return run


@pytest.fixture
def run(scored: RunDir, tmp_path: Path) -> RunDir:
    return copy_run(scored, tmp_path / "run")


def tasks(run: RunDir, *, count: int = 2, restarts: int = 0, signals: dict[int, int] | None = None) -> list[Attempt]:
    """One a rank; some get a signal after their first step."""
    call = StageCall(stage="train", run=run.root, iteration=0)
    return [
        Attempt(
            call=call,
            log=run.root.with_suffix(f".{rank}.log"),
            number=(signals or {}).get(rank),
            environment=variables(rank, count, restarts),
        )
        for rank in range(count)
    ]


def variables(rank: int, count: int, restarts: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_JOB_END_TIME": "0",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURMD_NODENAME": "localhost",
        "SLURM_NTASKS": str(count),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
    }


def log_of(run: RunDir) -> str:
    return "".join(path.read_text() for path in sorted(run.root.parent.glob("run.?.log")))


def files(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.stage_path("train", 0).iterdir())


def test_two_tasks_do_what_one_process_does(trained: RunDir, before_training: RunDir) -> None:
    two, one = (pq.read_table(each.train_samples_path(0)).to_pydict() for each in (trained, before_training))

    for name in MEANS:
        assert two[name] == pytest.approx(one[name], abs=1e-5), name
    manifests = [read_manifest(each.manifest_path("train", 0)) for each in (trained, before_training)]
    assert manifests[0].metrics == pytest.approx(manifests[1].metrics, abs=1e-5)
    assert files(trained) == files(before_training)
    assert leftovers(trained) == []


def test_the_first_task_alone_prints_the_manifest(trained: RunDir) -> None:
    assert trained.root.with_suffix(".0.log").read_text().count("manifest.json") == 1
    first = copy_run(trained, trained.root.parent / "again")
    out = [first.root.parent / f"{rank}.out" for rank in (0, 1)]
    again = [
        Attempt(call=a.call, log=a.log, out=path, environment=a.environment)
        for a, path in zip(tasks(first), out, strict=True)
    ]

    assert outcomes(*again) == [0, 0]

    assert [path.read_text() for path in out] == [f"{first.manifest_path('train', 0)}\n", ""]


def test_one_task_that_is_told_to_stop_stops_all_and_the_job_goes_on_after_its_requeue(
    run: RunDir, trained: RunDir
) -> None:
    assert outcomes(*tasks(run, signals={1: TERM})) == [75, 0], log_of(run)
    assert "(another trainer process was told to stop)" in run.root.with_suffix(".0.log").read_text()
    assert saved_steps(run, 0) == 1

    assert outcomes(*tasks(run, restarts=1)) == [0, 0], log_of(run)

    assert log_of(run).count("goes on after step 1 of 3") == 1
    manifests = [read_manifest(each.manifest_path("train", 0)) for each in (run, trained)]
    assert manifests[0].content == manifests[1].content
    assert manifests[0].metrics == manifests[1].metrics
    assert manifests[0].outputs == manifests[1].outputs


def test_a_committed_training_is_nothing_to_do_for_all_tasks(trained: RunDir, tmp_path: Path) -> None:
    run = copy_run(trained, tmp_path / "run")

    assert outcomes(*tasks(run)) == [0, 0]

    assert log_of(run).count("train 0: already committed") == 1


def test_what_the_first_task_refuses_ends_all_and_it_alone_gives_the_job_its_exit_code(run: RunDir) -> None:
    run.manifest_path("reward", 0, 0, 1).unlink()

    assert outcomes(*tasks(run)) == [66, 0]

    assert log_of(run).count(f"hint: slime-stages reward --run {run.root} --iter 0 --shard 0") == 1
    assert log_of(run).count("trainer process 1 ends with the first one") == 1


def test_as_many_tasks_as_the_config_does_not_want_end_with_both_numbers(run: RunDir) -> None:
    assert outcomes(*tasks(run, count=3)) == [2, 0, 0]

    assert log_of(run).count("the config wants 2 trainer processes") == 3
    assert log_of(run).count("the job has 3 tasks (SLURM_NTASKS)") == 3


def test_the_other_tasks_do_not_wait_for_one_that_died(run: RunDir, trained: RunDir) -> None:
    started = time.monotonic()

    codes = outcomes(*tasks(run, signals={0: KILL}))

    assert codes[0] == -KILL
    assert codes[1] not in (0, None)
    assert time.monotonic() - started < 60
    assert outcomes(*tasks(run, restarts=1)) == [0, 0], log_of(run)
    contents = [read_manifest(each.manifest_path("train", 0)).content for each in (run, trained)]
    assert contents[0] == contents[1]


def test_a_signal_that_follows_from_the_death_of_another_task_is_no_drain(run: RunDir) -> None:
    codes = outcomes(*tasks(run, signals={0: TERM, 1: KILL}))

    assert codes[0] not in (0, 75)
    assert saved_steps(run, 0) == 0


def test_a_task_of_several_knows_its_place_and_a_batch_script_is_alone() -> None:
    call = StageCall(stage="train", run=Path("/run"), iteration=3)
    environment = variables(1, 2, 0)

    ranks = slurm_ranks(call, environment)

    assert ranks is not None
    assert (ranks.rank, ranks.local_rank, ranks.count, ranks.host) == (1, 0, 2, "localhost")
    assert ranks.folder.parent == Path("/run/iterations/000003/train/.tasks")
    assert ranks.folder != getattr(slurm_ranks(call, variables(1, 2, 1)), "folder", None)
    del environment["SLURM_STEP_ID"]
    assert slurm_ranks(call, environment) is None
    assert task_count({}) == 1


def test_a_node_whose_name_nobody_knows_goes_by_the_machines_own() -> None:
    assert own_name({"SLURMD_NODENAME": "no.such.node.invalid"}) == own_name({})


def test_one_process_of_a_config_for_two_nodes_says_what_to_write_into_the_batch_script() -> None:
    with pytest.raises(UsageError, match=r"wants 4 trainer processes .*2 x .*2\); this one was started alone") as error:
        check_process_count(Train(actor_num_nodes=2, actor_num_gpus_per_node=2), {})

    assert str(error.value.hint).startswith("#SBATCH --nodes=2 and #SBATCH --ntasks-per-node=2 in sbatch/train.sbatch")
    check_process_count(Train(actor_num_gpus_per_node=2), {})


@pytest.mark.parametrize(
    ("tasks", "task", "code", "own"),
    [
        ("4", "0", 75, 75),
        (
            "4",
            "3",
            75,
            1,
        ),  # drained before it met the first one, which may have ended with any code: srun's is the highest
        ("4", "3", 70, 70),
        ("1", "0", 75, 75),
    ],
)
def test_of_drained_tasks_the_first_one_says_what_the_job_ends_with(tasks: str, task: str, code: int, own: int) -> None:
    environment = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": tasks, "SLURM_PROCID": task}

    assert exit_code_of_task(code, environment) == own


def test_several_processes_on_this_machine_are_drained_with_the_one_that_started_them(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    run = run_to_train(tmp_path / "run", tiny_model, tiny_prompts, actor_num_gpus_per_node=2)
    call = StageCall(stage="train", run=run.root, iteration=0)
    log = tmp_path / "run.0.log"

    assert outcome(Attempt(call=call, log=log, number=TERM, after="2 children")) == 75, log.read_text()
    assert outcome(Attempt(call=call, log=log)) == 0, log.read_text()

    assert read_manifest(run.manifest_path("train", 0)).rows == 12
    assert leftovers(run) == []
