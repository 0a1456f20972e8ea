"""Fixtures that more than one room uses: real parts, small."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_stages.serving.engine import Engine
from tests.e2e.stage_calls import Forker
from tests.fixtures.tiny_model import make_tiny_model, make_tiny_prompts
from tests.fixtures.verbs import verbs_folders

# As engines and stages run: threads sleep while they wait, and MKL gives the same bits with any number of them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
# Models here are so small that a second thread only waits, and spins against the other worker's.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a shell runs in the background ignores Ctrl-C, and so would the programs that tests send it to.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has the other worker of `make test` wait while a test runs that is marked `alone`."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (folder / "alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that the test forked may still have the file open


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a random Qwen3; do not write to it."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def tiny_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 sums as messages, with labels; do not write to it."""
    return make_tiny_prompts(tmp_path_factory.mktemp("prompts") / "sums.jsonl", 64)


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """A real server of the tiny model, as version 0. Who loads other weights brings it back to these."""
    with Engine(tiny_model, "0", log=tmp_path_factory.mktemp("engine") / "engine.log") as engine:
        yield engine


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that start here may work in pairs."""
    folders = [*map(str, verbs_folders()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    if folders:
        monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(folders))


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    """Runs stage calls in forks of one process that has their imports behind it."""
    with Forker(tmp_path_factory.mktemp("forker") / "stages.log") as forker:
        yield forker
