"""Engines in a job of a real SLURM: found from outside by their record, and gone with the job."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from slime_stages.serving.handle import EngineHandle
from slime_stages.serving.registry import SERVICE, EngineRecord, find_engines
from slime_stages.slurm.jobs import attempts_of
from tests.slurm.chains import ChainRun

pytestmark = pytest.mark.slurm

HEADER = f"""#!/bin/bash
#SBATCH --cpus-per-task=1 --mem=4000M --time=00:10:00
export OMP_NUM_THREADS=1
exec {Path(sys.executable).with_name("slime-stages")} serve "$@"
"""


def service(chain: ChainRun) -> EngineRecord:
    """The record that the job leaves once its engine serves."""
    found: list[EngineRecord] = []

    def serves() -> bool:
        found[:] = find_engines(chain.run.engines_path, kind=SERVICE)
        return bool(found)

    chain.until(serves, "the service", seconds=200)
    return found[0]


def test_a_service_is_submitted_found_from_outside_and_cancelled(chain: ChainRun) -> None:
    (chain.sbatch / "serve.sbatch").write_text(HEADER)
    words = ("--run", str(chain.run.root))
    chain.call("init", *words, "--config", str(chain.folder / "config.toml"))

    job = chain.call("serve", "--submit", *words, "--sbatch", str(chain.sbatch)).stdout.strip()
    record = service(chain)
    [attempt] = attempts_of(chain.run, "serve", 0)
    chain.call("cancel", "serve", *words)
    chain.until(lambda: not chain.cluster.run("squeue", "-h", "-j", job, "-o", "%i", check=False), "the end of the job")
    time.sleep(1)

    assert (attempt.job_id, record.job_id) == (job, job)
    assert not record.url.startswith("http://127.")
    assert not EngineHandle(record.url, timeout_seconds=2).is_healthy()
    assert find_engines(chain.run.engines_path) == []
