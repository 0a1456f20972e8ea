from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime_stages.errors import DataError, MissingInputError, UsageError
from slime_stages.serving.engine import Engine, EngineOptions
from slime_stages.serving.fleet import Member
from slime_stages.serving.monitor import look
from tests.fixtures.tiny_model import make_tiny_model

OWNER = """
import sys, time
from pathlib import Path
from slime_stages.serving.engine import Engine, EngineOptions

def report(seconds, line):
    print("waiting", flush=True)

options = EngineOptions(device="cpu", flags={"skip_tokenizer_init": True})
with Engine(Path(sys.argv[1]), "1", log=Path(sys.argv[2]), options=options, progress=report) as engine:
    print("serving", engine.url, flush=True)
    time.sleep(600)
"""


def test_an_engine_serves_the_weight_version_it_was_started_with(engine: Engine) -> None:
    assert engine.is_healthy()
    assert engine.version() == "0"
    assert engine.server_info()["enable_deterministic_inference"] is True


def test_weights_are_replaced_and_their_version_with_them(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", seed=1)

    engine.update_weights(other, "8")
    version_after = engine.version()
    engine.update_weights(tiny_model, "0")

    assert version_after == "8"
    assert engine.version() == "0"


def test_weights_that_do_not_load_leave_the_old_ones_in_place(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="refuses \\(400\\)"):
        engine.update_weights(tmp_path / "nothing", "9")

    assert engine.version() == "0"
    assert engine.is_healthy()


def test_a_paused_engine_is_not_taken_for_dead(engine: Engine) -> None:
    """Though its `/health` answers 503, after 20 seconds."""
    layout: Any = None
    member = Member(model=layout, group=layout, engine=engine, number=0, name="engine")
    engine.call("POST", "/pause_generation", {"mode": "retract"})
    try:
        look(member, 5.0)
    finally:
        engine.call("POST", "/continue_generation")

    assert member.missed_looks == 0
    assert engine.is_healthy()


@pytest.mark.slow
def test_an_engine_runs_in_a_container_by_a_command_that_stands_for_python(tiny_model: Path, tmp_path: Path) -> None:
    """The container sees an empty folder where this machine has one with a file."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "file").touch()
    python = tmp_path / "python"
    words = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(hidden), sys.executable]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    python.chmod(0o755)
    options = EngineOptions(python=str(python), device="cpu", flags={"skip_tokenizer_init": True})
    others = psutil.Process().children(recursive=True)

    with Engine(tiny_model, "1", log=tmp_path / "sglang.log", options=options) as engine:
        processes = [each for each in psutil.Process().children(recursive=True) if each not in others]
        answer = engine.call("POST", "/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3}})
        servers = [each for each in processes if "sglang.launch_server" in each.cmdline()]
        seen = [os.listdir(f"/proc/{each.pid}/root{hidden}") for each in servers if each.name() != "bwrap"]
    _, alive = psutil.wait_procs(processes, timeout=15)

    assert len(answer["output_ids"]) == 3
    assert [] in seen
    assert alive == []


def test_a_folder_without_a_model_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"holds no config\.json"):
        Engine(tmp_path, "1", log=tmp_path / "log").start()


def test_a_value_that_sglang_refuses_is_a_usage_error_in_its_words(tiny_model: Path, tmp_path: Path) -> None:
    options = EngineOptions(device="cpu", flags={"schedule_policy": "fifo"})
    engine = Engine(tiny_model, "1", log=tmp_path / "sglang.log", options=options)

    with pytest.raises(UsageError, match="argument --schedule-policy: invalid choice: 'fifo'") as caught:
        engine.start()

    assert caught.value.hint == f"less {tmp_path / 'sglang.log'}"
    assert not engine.is_alive()


@pytest.mark.parametrize("moment", ["waiting", "serving"])
def test_nothing_is_left_when_the_owner_is_killed(moment: str, tiny_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tiny_model), str(tmp_path / "sglang.log")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert owner.stdout is not None
    for line in owner.stdout:
        if line.startswith(moment):
            break
    time.sleep(2)
    processes = psutil.Process(owner.pid).children(recursive=True)

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(processes, timeout=15)

    assert len(processes) >= 2  # the guard and at least the server
    assert alive == []
