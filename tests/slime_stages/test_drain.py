"""A signal becomes one exception, when nothing is half done; another one changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import os, signal, sys, threading
from slime_stages.drain import *
from slime_stages.drain import _drain

def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

install_drain()
"""


def run(script: str) -> list[str]:
    """What a process says that does this with the handlers installed."""
    code = HEAD + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60, check=False
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()[-1:], str(done.returncode)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_a_signal_ends_the_work_with_its_reason(name: str) -> None:
    said = run(f"""
        print(drain_reason())
        try:
            send(signal.{name})
            print("went on")
        except KeyboardInterrupt as drained:
            print(type(drained).__name__, drained.reason, "|", drained.message)
        print(drain_reason())
    """)

    assert said == [
        "None",
        f"Drained {name} | drained ({name}): what is committed stays, the same command does the rest",
        name,
        "0",
    ]


def test_it_is_raised_once_and_the_first_reason_stays() -> None:
    said = run("""
        try:
            send()
        except Drained:
            send(signal.SIGUSR2)
            send()
        print(drain_reason())
    """)

    assert said == ["SIGTERM", "0"]


def test_a_second_ctrl_c_breaks_off_what_the_first_has_begun_to_end() -> None:
    said = run("""
        try:
            try:
                send(signal.SIGINT)
            except Drained:
                send()
                print("ending")
                send(signal.SIGINT)
        except KeyboardInterrupt as error:
            print(type(error).__name__, drain_reason())
    """)

    assert said == ["ending", "KeyboardInterrupt SIGINT", "0"]


def test_after_the_last_write_ctrl_c_says_nothing_however_often() -> None:
    said = run("""
        with uninterrupted(last=True):
            pass
        for _ in range(3):
            send(signal.SIGINT)
        print("committed", drain_reason())
    """)

    assert said == ["committed SIGINT", "0"]


def test_a_signal_that_was_blocked_comes_once_it_is_heeded() -> None:
    said = run("""
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
            send(signal.SIGINT)
            try:
                install_drain()
            except Drained:
                os._exit(75)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)

    assert said == ["75", "0"]


def test_what_runs_in_a_shells_background_ignores_ctrl_c_as_before() -> None:
    said = run("""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            install_drain()
            send(signal.SIGINT)
            os._exit(0 if drain_reason() is None else 1)
        print(os.waitpid(child, 0)[1])
    """)

    assert said == ["0", "0"]


def test_a_handler_of_exceptions_lets_it_pass() -> None:
    said = run("""
        try:
            try:
                send()
            except Exception:
                print("swallowed")
        except Drained:
            print("passed")
    """)

    assert said == ["passed", "0"]


def test_within_a_write_it_waits_for_the_end_of_the_outermost_block() -> None:
    said = run("""
        try:
            with uninterrupted():
                with uninterrupted():
                    send()
                    print("written")
                print("fsynced")
            print("went on")
        except Drained:
            print("drained")
    """)

    assert said == ["written", "fsynced", "drained", "0"]


def test_after_the_last_write_nothing_is_raised() -> None:
    said = run("""
        with uninterrupted(last=True):
            send()
        send()
        print("committed", drain_reason())
    """)

    assert said == ["committed SIGTERM", "0"]


def test_a_failure_within_a_write_is_not_hidden() -> None:
    said = run("""
        try:
            with uninterrupted():
                send()
                raise OSError("disk full")
        except OSError as error:
            print(error)
    """)

    assert said == ["disk full", "0"]


def test_a_listener_hears_every_signal_and_nothing_is_raised_then_or_later() -> None:
    said = run("""
        with listening(lambda: print("heard", drain_reason())):
            send(signal.SIGUSR2)
            send()
        send()
        print("ends by itself")
    """)

    assert said == ["heard SIGUSR2", "heard SIGUSR2", "ends by itself", "0"]


def test_another_thread_writes_on_and_the_main_thread_is_told() -> None:
    said = run("""
        begun, sent = threading.Event(), threading.Event()
        def write():
            with uninterrupted():
                begun.set()
                sent.wait()
            print("written")
        thread = threading.Thread(target=write)
        thread.start()
        begun.wait()
        try:
            send()
            print("went on")
        except Drained:
            print("drained")
        sent.set()
        thread.join()
    """)

    assert said == ["drained", "written", "0"]


def test_a_fork_dies_of_the_signal_as_before() -> None:
    said = run("""
        child = os.fork()
        if child == 0:
            send()
            os._exit(0)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM, drain_reason())
    """)

    assert said == ["True None", "0"]


def test_a_fork_can_be_a_stage_of_its_own() -> None:
    said = run("""
        child = os.fork()
        install_drain()
        try:
            if child == 0:
                send()
        except Drained:
            os._exit(75)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), drain_reason())
    """)

    assert said == ["75 None", "0"]


def test_without_a_signal_a_reason_is_noted_and_the_first_one_stays() -> None:
    said = run("""
        begin_drain("the job ends at 12:00:00")
        begin_drain("another one")
        send()
        print(drain_reason())
        print(made_progress())
        count_progress(2)
        print(made_progress())
    """)

    assert said == ["the job ends at 12:00:00", "False", "True", "0"]


def test_a_signal_while_the_interpreter_takes_itself_down_leaves_the_exit_code_as_it_is() -> None:
    said = run("""
        class Late:
            def __del__(self, kill=os.kill, pid=os.getpid()):  # a module's variables go after its signal handlers
                kill(pid, 15)

        late = Late()
        sys.exit(75)
    """)

    assert said == ["75"]
