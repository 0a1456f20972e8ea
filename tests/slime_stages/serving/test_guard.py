from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from slime_stages.serving import guard

RUNAWAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def start_guard(*command: str, temporary: Path | None = None) -> subprocess.Popen[bytes]:
    environment = os.environ | ({"TMPDIR": str(temporary)} if temporary else {})
    words = [sys.executable, "-I", "-S", guard.__file__, *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)


def read_when_written(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
    return path.read_text()


def test_a_grandchild_in_a_session_of_its_own_ends_with_the_pipe(tmp_path: Path) -> None:
    process = start_guard(sys.executable, "-c", RUNAWAY, str(tmp_path / "pid"))
    runaway = psutil.Process(int(read_when_written(tmp_path / "pid")))

    assert process.stdin is not None
    process.stdin.close()

    assert process.wait(10) == 0
    assert not runaway.is_running()


def test_the_exit_code_of_the_server_is_the_guards() -> None:
    assert start_guard(sys.executable, "-c", "raise SystemExit(3)").wait(20) == 3
    assert start_guard(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").wait(20) == 128 + 9


def test_the_server_dies_with_a_guard_that_is_killed(tmp_path: Path) -> None:
    write_pid = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    process = start_guard(sys.executable, "-c", write_pid, str(tmp_path / "pid"), temporary=tmp_path)
    server = psutil.Process(int(read_when_written(tmp_path / "pid")))

    process.kill()
    process.wait()
    _, alive = psutil.wait_procs([server], timeout=10)

    assert alive == []


def test_temporary_files_of_the_server_are_removed(tmp_path: Path) -> None:
    leave_a_file = "import sys, tempfile; open(sys.argv[1], 'w').write(tempfile.mkstemp()[1])"
    process = start_guard(sys.executable, "-c", leave_a_file, str(tmp_path / "path"))

    process.wait(20)

    left = Path((tmp_path / "path").read_text())
    assert left.parent.name.startswith("slime-stages-")
    assert not left.parent.exists()
