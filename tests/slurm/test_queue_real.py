"""What the queue says of jobs, as a real controller and real accounting tell it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from slime_stages.slurm import commands
from slime_stages.slurm.queue import JobInfo, Queue, SchedulerDown, query, scheduler_limits
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import NAME, node_of, submit, wait_for, wait_for_state
from tests.slurm.layout import ClusterSettings

pytestmark = pytest.mark.slurm


def ask(*job_ids: str) -> Queue:
    return query(NAME, job_ids, since=time.time() - 600)


def wait_for_job(job_id: str, is_so: Callable[[JobInfo], bool], *, seconds: float = 30) -> JobInfo:
    deadline = time.monotonic() + seconds
    while True:
        job = ask(job_id).get(job_id)
        if job is not None and is_so(job):
            return job
        assert time.monotonic() < deadline, f"{job}"
        time.sleep(0.2)


def wait_until_ended(job_id: str, *, seconds: float = 30) -> JobInfo:
    return wait_for_job(job_id, lambda job: not job.is_live, seconds=seconds)


def test_a_job_is_known_from_its_submission_to_its_end(slurm: Cluster) -> None:
    before = time.time() - 2
    held = submit(slurm, "true", "--hold")
    pending = ask(held).jobs[held]
    assert (pending.state, pending.reason, pending.is_live, pending.started) == ("PENDING", "JobHeldUser", True, None)

    job_id = submit(slurm, "sleep 2")
    running = wait_for_job(job_id, lambda job: job.state == "RUNNING")
    assert (running.nodes, running.ended) == ("node1", None)

    ended = wait_until_ended(job_id)
    assert (ended.state, ended.exit_code, ended.signal) == ("COMPLETED", 0, 0)
    assert ended.submitted is not None
    assert ended.started is not None
    assert ended.ended is not None
    assert before < ended.submitted <= ended.started <= ended.ended <= time.time() + 1
    assert {job.job_id for job in ask(job_id, held).live()} == {held}


def test_a_failed_job_has_its_exit_code(slurm: Cluster) -> None:
    job = wait_until_ended(submit(slurm, "exit 66"))

    assert (job.state, job.exit_code, job.signal) == ("FAILED", 66, 0)


def test_a_cancelled_job_is_cancelled_whoever_did_it(slurm: Cluster) -> None:
    job_id = submit(slurm, "sleep 300")
    wait_for_state(slurm, job_id, "RUNNING")

    slurm.run("scancel", job_id)

    assert wait_until_ended(job_id).state == "CANCELLED"


def test_a_job_whose_dependency_cannot_be_met_is_cancelled(slurm: Cluster) -> None:
    first = submit(slurm, "exit 1")
    wait_until_ended(first)

    job = wait_until_ended(submit(slurm, "true", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes"))

    assert (job.state, job.started, job.nodes) == ("CANCELLED", job.ended, "")


def test_tasks_of_an_array_have_a_state_each(slurm: Cluster) -> None:
    array = submit(slurm, "[ $SLURM_ARRAY_TASK_ID = 0 ] || sleep 300; exit 3", "--array=0-7%3")
    tasks = [f"{array}_{task}" for task in range(8)]
    wanted = ["FAILED", *["RUNNING"] * 3, *["PENDING"] * 4]

    wait_for(lambda: [ask(*tasks).jobs[task].state for task in tasks] == wanted)

    queue = ask(*tasks)
    assert queue.jobs[tasks[0]].exit_code == 3
    assert queue.jobs[tasks[7]].reason == "JobArrayTaskLimit"


def test_a_job_that_its_node_lost_is_live_and_remembers_the_node(slurm: Cluster) -> None:
    job_id = submit(slurm, "sleep 300")
    wait_for_state(slurm, job_id, "RUNNING")
    node = node_of(slurm, job_id)

    slurm.kill_node(node)

    job = wait_for_job(job_id, lambda job: bool(job.failed_nodes))
    assert (job.failed_nodes, job.restarts, job.is_live) == ((node,), 1, True)
    again = wait_for_job(job_id, lambda job: job.state == "RUNNING")
    assert (again.failed_nodes, again.nodes != node) == ((node,), True)


def test_a_task_that_its_node_lost_remembers_the_node(slurm: Cluster) -> None:
    array = submit(slurm, "sleep 300", "--array=0-1")
    tasks = [f"{array}_0", f"{array}_1"]
    wait_for(lambda: all(ask(task).jobs[task].state == "RUNNING" for task in tasks))
    lost = [task for task in tasks if ask(task).jobs[task].nodes == "node1"]

    slurm.kill_node("node1")

    for task in tasks:
        expected = ("node1",) if task in lost else ()
        wait_for_job(task, lambda job, expected=expected: job.failed_nodes == expected)  # type: ignore[misc]


def test_a_job_that_may_not_be_requeued_ends_with_its_node(slurm: Cluster) -> None:
    job_id = submit(slurm, "sleep 300", "--no-requeue")
    wait_for_state(slurm, job_id, "RUNNING")
    node = node_of(slurm, job_id)

    slurm.kill_node(node)

    job = wait_until_ended(job_id)
    assert (job.state, job.nodes, job.failed_nodes) == ("NODE_FAIL", node, ())


def test_a_requeued_job_counts_its_restarts(slurm: Cluster) -> None:
    job_id = submit(slurm, "sleep 300")
    wait_for_state(slurm, job_id, "RUNNING")

    slurm.run("scontrol", "requeue", job_id)

    job = wait_for_job(job_id, lambda job: job.state == "RUNNING" and job.restarts == 1)
    assert job.failed_nodes == ()


def test_a_job_that_has_to_make_room_is_live_as_it_is_requeued(slurm: Cluster) -> None:
    everything = ("--nodes=4", "--exclusive")
    low = submit(slurm, "sleep 300", "--partition=low", *everything)
    wait_for_state(slurm, low, "RUNNING")

    main = submit(slurm, "sleep 300", "--partition=main", *everything)

    wait_for_state(slurm, main, "RUNNING", seconds=slurm.settings.grace_time + 30)
    job = ask(low).jobs[low]
    assert (job.state, job.restarts, job.failed_nodes, job.is_live) == ("PENDING", 1, (), True)


@pytest.mark.slow
def test_a_job_over_its_time_limit_is_a_timeout(slurm: Cluster) -> None:
    job = wait_until_ended(submit(slurm, "sleep 300", "--time=1"), seconds=150)

    assert (job.state, job.is_live) == ("TIMEOUT", False)


def test_what_the_controller_forgot_is_known_to_accounting(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        Cluster.new(tmp_path_factory.mktemp("forgetful"), ClusterSettings(nodes=2, min_job_age=2)) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", cluster.slurm_conf)
        failed, array = submit(cluster, "exit 66"), submit(cluster, "exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
        wait_for(lambda: cluster.run("squeue", "-h", "--states=all") == "", seconds=60)

        queue = ask(failed, f"{array}_0", f"{array}_1", "1")

        states = [(job.job_id, job.state, job.exit_code, job.is_live) for job in queue.jobs.values()]
        assert sorted(states) == sorted(
            [
                (failed, "FAILED", 66, False),
                (f"{array}_0", "COMPLETED", 0, False),
                (f"{array}_1", "FAILED", 1, False),
            ]
        )
        assert queue.get("1") is None
        assert queue.has_accounting


def test_without_accounting_what_the_controller_knows_is_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        Cluster.new(tmp_path_factory.mktemp("bare"), ClusterSettings(nodes=1, accounting=False)) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", cluster.slurm_conf)
        job_id = submit(cluster, "exit 3")

        job = wait_until_ended(job_id)

        assert (job.state, job.exit_code) == ("FAILED", 3)
        queue = ask(job_id, "1")
        assert (queue.has_accounting, queue.get("1")) == (False, None)
        assert not scheduler_limits().has_accounting


def test_a_controller_that_is_down_for_some_seconds_is_waited_for(
    slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = submit(slurm, "sleep 300")
    wait_for_state(slurm, job_id, "RUNNING")
    slurm.stop_controller()
    threading.Timer(5, slurm.start_controller).start()

    queue = ask(job_id)

    assert queue.jobs[job_id].state == "RUNNING"
    assert capsys.readouterr().err.count("does not answer") <= 1


def test_a_controller_that_stays_down_is_said_to_be(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PATIENCE_SECONDS", 1.0)
    slurm.stop_controller()

    with pytest.raises(SchedulerDown, match="the SLURM controller does not answer: Unable to contact"):
        ask("1")


def test_the_cluster_tells_its_limits(slurm: Cluster) -> None:
    limits = scheduler_limits()

    assert (limits.cluster, limits.max_array_size, limits.min_job_age_seconds) == ("tests", 1001, 300.0)
    assert limits.version.split(".")[0].isdigit()
    assert limits.has_accounting
    assert limits.requeues
