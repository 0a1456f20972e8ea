"""One cluster for all tests that a process runs; each finds it empty, with every node idle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime_stages.serving.engine import Engine
from tests.e2e.runs import at_version_0
from tests.slurm.chains import FAULTS, ChainRun
from tests.slurm.cluster import Cluster
from tests.slurm.packages import PackagesMissing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes with two CPUs and four GPUs each, accounting on. SLURM_CONF leads there, from here and children."""
    try:
        made = Cluster.new(tmp_path_factory.mktemp("slurm"))
    except PackagesMissing as error:
        pytest.fail(str(error), pytrace=False)
    with pytest.MonkeyPatch.context() as patch, made:
        for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH", "SQUEUE", "SACCT"))]:
            patch.delenv(name)
        patch.setenv("SLURM_CONF", made.slurm_conf)
        yield made


@pytest.fixture
def slurm(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, empty and idle; whatever the test breaks is mended after."""
    yield cluster
    cluster.clear()


@pytest.fixture(scope="session")
def new_chain(
    cluster: Cluster, tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine
) -> Callable[[Path], ChainRun]:
    """A run in a folder, of 2 shards an iteration, not begun; its generate function does as `plant` says."""

    def make(folder: Path) -> ChainRun:
        engine = at_version_0(tiny_engine)
        made = ChainRun(folder=folder, cluster=cluster, model=tiny_model, prompts=tiny_prompts, engine=engine)
        made.settings = dict(FAULTS)
        return made.prepare()

    return make


@pytest.fixture
def chain(slurm: Cluster, tmp_path: Path, new_chain: Callable[[Path], ChainRun]) -> ChainRun:
    """A run on an idle cluster."""
    return new_chain(tmp_path / "c")
