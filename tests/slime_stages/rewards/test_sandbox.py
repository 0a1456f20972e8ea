"""Programs that nobody vouches for, run for real; each line of a program is what it tries."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.isolation import namespaces
from slime_stages.isolation.process_tree import children
from slime_stages.rewards.sandbox import SCRATCH, Ended, Isolation, Limits, run_python
from tests.slime_stages.rewards.pool_tasks import wait_until


def run(source: str, *, seconds: float = 10.0, isolation: Isolation = "namespaces", stdin: bytes = b"") -> Ended:
    return run_python(source, stdin, Limits(seconds=seconds, memory_bytes=1 << 30, isolation=isolation))


def own_children() -> set[int]:
    """The engines that other tests share are among them."""
    return set(children(os.getpid()))


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_a_program_reads_and_writes_and_ends_with_its_code(isolation: Isolation) -> None:
    source = "import sys\nprint(input())\nprint('why', file=sys.stderr)\nsys.exit(3)"

    assert run(source, isolation=isolation, stdin=b"hi") == Ended(code=3, stdout=b"hi\n", stderr=b"why\n")


def test_a_program_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        ended = run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")

    assert b"Connection refused" in ended.stderr  # by a loopback of its own


def test_a_program_sees_no_other_file_and_writes_to_its_scratch_folder_alone_which_goes_with_it() -> None:
    home = Path(__file__).parent

    look = f"import os\nprint(open('{SCRATCH}/a').read(), os.path.exists('{home}'))"

    ended = run(f"open('a', 'w').write('b')\n{look}\nopen('/usr/a', 'w')")

    assert ended.stdout == b"b False\n"
    assert b"Read-only file system" in ended.stderr
    assert not Path(SCRATCH, "a").exists()


def test_a_program_sees_no_other_process_and_can_end_none() -> None:
    ended = run(
        "import os, signal\n"
        "print(os.getpid(), [name for name in os.listdir('/proc') if name.isdigit()])\n"
        f"os.kill({os.getpid()}, signal.SIGKILL)"
    )

    assert ended.stdout in (b"1 ['1']\n", b"1 []\n")
    assert b"ProcessLookupError" in ended.stderr


def test_a_program_cannot_undo_its_read_only_view() -> None:
    remount = "print(c.mount(b'none', b'/', None, 4128, None))"

    ended = run(
        f"import ctypes\nc = ctypes.CDLL(None)\n{remount}\nc.unshare(0x10020000)\n{remount}\nopen('/etc/a', 'w')"
    )

    assert ended.stdout == b"-1\n-1\n"
    assert b"Error" in ended.stderr


def test_a_program_is_not_told_what_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")

    assert run("import os\nprint(os.environ.get('SECRET_KEY'))").stdout == b"None\n"


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)",
        "9**9**9",
    ],
)
def test_a_program_without_end_is_killed_with_its_children(source: str) -> None:
    before = own_children()
    started = time.monotonic()

    assert run(source, seconds=0.5).code is None

    assert time.monotonic() - started < 2.5
    assert wait_until(lambda: own_children() <= before)


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_a_program_that_starts_processes_without_end_is_killed(isolation: Isolation) -> None:
    source = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)\n    time.sleep(0.001)"

    before = own_children()

    ended = run(source, isolation=isolation)

    assert ended.code in (1, 137)  # the kernel refuses to start one, or it is killed
    assert wait_until(lambda: own_children() <= before)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x = b'1' * (8 << 30)", b"MemoryError"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", b"File too large"),
        ("def f(): f()\nf()", b"RecursionError"),
        ("files = [open('/dev/null') for _ in range(1000)]", b"Too many open files"),
    ],
)
def test_memory_output_depth_and_files_are_limited(source: str, error: bytes) -> None:
    ended = run(source)

    assert ended.code != 0
    assert error in ended.stderr
    assert len(ended.stdout) <= 16 << 20


def test_a_machine_that_shuts_nothing_in_is_told_of_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(namespaces, "leave_machine", refuse)

    with pytest.raises(UsageError, match="does not let a program be shut in: PermissionError") as caught:
        run("print(1)")
    assert "--code-sandbox limits" in str(caught.value.hint)
