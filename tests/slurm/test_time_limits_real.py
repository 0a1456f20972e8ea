"""Rollouts that run into their time limit, as part of a whole chain: one that drains, and one that hears nothing.

SLURM counts time limits in minutes, so both runs wait for theirs at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime_stages.launch.states import first_incomplete
from tests.slurm.chains import ChainRun
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

DEAF = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that starts another one to which signals do not get through, as some containers do."""


@pytest.fixture(scope="module")
def begun(
    cluster: Cluster, new_chain: Callable[[Path], ChainRun], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ChainRun, ChainRun]]:
    """A run whose rollout drains, and one whose rollout is deaf to signals; groups 2 and 3 are shard 1 of each."""
    draining, deaf = (new_chain(tmp_path_factory.mktemp("limits") / name) for name in ("draining", "deaf"))
    draining.plant(0, 3, "sleep 600")  # group 2 is finished by the time limit
    (deaf.folder / "deaf.py").write_text(DEAF)
    deaf.edit_header("rollout", "exec ", f"exec {sys.executable} {deaf.folder}/deaf.py ")
    deaf.plant(0, 3, "freeze 8", "", "freeze 0")  # one for each of its two samples, the first time
    draining.iter(1, "--slurm-rollout-time", "3")
    deaf.iter(1, "--slurm-rollout-time", "1")
    yield draining, deaf
    cluster.clear()


def test_a_rollout_drains_before_its_time_limit_and_the_same_job_ends_it(begun: tuple[ChainRun, ChainRun]) -> None:
    chain, _ = begun

    assert chain.wait(1, seconds=420.0).stopped is None

    assert first_incomplete(chain.run) == 1
    [attempt] = chain.attempts("rollout", 0)
    log = attempt.log_paths(1)[1].read_text()
    assert "drained (SIGUSR2): 1 of 2 groups are in the journal" in log
    [end] = chain.tries("rollout", 0, 1)
    assert end is not None
    assert (end.exit_code, end.restarts) == (0, 1)
    assert [line.split("|")[1] for line in runs(chain, attempt.task_id(1))] == ["REQUEUED", "COMPLETED"]


def test_a_rollout_that_is_cut_off_goes_on_while_its_journal_grows_and_then_asks_for_time(
    begun: tuple[ChainRun, ChainRun],
) -> None:
    _, chain = begun

    stopped = chain.wait(1, seconds=420.0)

    assert re.fullmatch(
        r"rollout 0/1: ran into its time limit after 00:01:\d\d and got no further", stopped.stopped or ""
    )
    assert stopped.advice == (
        f"slime-stages iter --n 0 --executor slurm --run {chain.run.root} --slurm-rollout-time 00:02:00"
    )
    attempts = [attempt for attempt in chain.attempts("rollout", 0) if 1 in attempt.shards]
    assert [runs(chain, attempt.task_id(1))[-1].split("|")[1] for attempt in attempts] == ["TIMEOUT", "TIMEOUT"]

    chain.iter(0, "--slurm-rollout-time", "00:02:00")
    assert chain.wait(1).stopped is None
    assert first_incomplete(chain.run) == 1


def runs(chain: ChainRun, task: str | None) -> list[str]:
    """Every run of a task as accounting has it: `id|state`."""
    listed = chain.cluster.run("sacct", "--duplicates", "-n", "-X", "-P", f"--jobs={task}", "--format=JobID,State")
    return listed.splitlines()
