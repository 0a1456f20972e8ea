from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.slurm.header import Header
from slime_stages.slurm.resources import Resources, clock, parse_time, resources_of


def resources(**options: str | bool) -> Resources:
    directives = {name.replace("_", "-"): value for name, value in options.items()}
    return resources_of(Header(path=Path("x.sbatch"), stage="train", directives=directives))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("30:00", 1800),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:00:01", 129601),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


def test_a_clock_is_a_time_limit_again() -> None:
    assert [clock(seconds) for seconds in (61, 7200, 129600)] == ["00:01:01", "02:00:00", "1-12:00:00"]


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ({}, 0),
        ({"gpus": "4"}, 4),
        ({"gpus": "h100:4"}, 4),
        ({"gpus": "h100:4,a100:2"}, 6),
        ({"gpus_per_node": "8", "nodes": "2"}, 16),
        ({"gpus_per_task": "1", "nodes": "2", "ntasks_per_node": "4"}, 8),
        ({"gres": "gpu:h100:4", "nodes": "2"}, 8),
        ({"gres": "gpu"}, 1),
        ({"gres": "shard:3"}, 0),
        ({"gpus": "all"}, None),
        ({"gpus_per_socket": "2"}, None),
    ],
)
def test_gpus_are_counted_over_the_whole_job(options: dict[str, str | bool], gpus: int | None) -> None:
    assert resources(**options).gpus == gpus


def test_hours_are_a_jobs_whole_time_limit() -> None:
    found = resources(nodes="2", ntasks_per_node="2", cpus_per_task="8", gpus_per_node="4", time="01:30:00")

    assert (found.processes, found.cpus, found.cpu_hours, found.gpu_hours) == (4, 32, 48.0, 12.0)


def test_what_the_header_leaves_to_the_cluster_is_not_known() -> None:
    found = resources(gpus="1", exclusive=True)

    assert (found.seconds, found.gpu_hours, found.cpus, found.memory, found.partition) == (None,) * 5


def test_a_job_without_gpus_uses_no_gpu_hours_however_long_it_may_take() -> None:
    assert resources().gpu_hours == 0.0


def test_memory_keeps_sbatchs_words() -> None:
    assert [resources(mem="64G").memory, resources(mem_per_cpu="4G").memory] == ["64G", "4G a core"]
