"""Reward functions that do what reward functions do at their worst; the sample's `label` says what."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from slime_stages.sample import Sample


def reward(args: Any, sample: Sample) -> Any:
    act = globals()[sample.label["act"]]
    return act(sample.label.get("path"))


async def lengths(args: Any, samples: Any) -> Any:
    """Takes a sample or a list, as a function for fan-out must."""
    if isinstance(samples, list):
        return [float(len(sample.response)) for sample in samples]
    return float(len(samples.response))


def good(path: str) -> float:
    return 0.5


def catastrophic_regex(path: str) -> bool:
    return re.fullmatch(r"(a+)+", "a" * 60 + "b") is None


def tower_of_nines(path: str) -> int:
    return 9**9**9


def ignored_sigterm(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    while True:
        time.sleep(60)


def hang_with_children(path: str) -> None:
    _fork_sleeper(path)
    time.sleep(600)


def child_that_outlives(path: str) -> float:
    _fork_sleeper(path)
    return 0.25


def daemon_that_outlives(path: str) -> float:
    """Forks twice into another session, so that neither parent nor group leads to it."""
    if (pid := os.fork()) == 0:
        os.setsid()
        _fork_sleeper(path)
        os._exit(0)
    os.waitpid(pid, 0)
    return 0.25


def forked_child_returns(path: str) -> float:
    return 0.75 if os.fork() else -1.0


def vanish(path: str) -> None:
    os._exit(3)


def crash(path: str) -> None:
    ctypes.string_at(0)


def leave(path: str) -> None:
    sys.exit("enough")


def raise_value_error(path: str) -> None:
    raise ValueError("no unit in `5 apples`")


def recurse(path: str) -> None:
    recurse(path)


def eat_memory(path: str) -> float:
    blocks = []
    while len(blocks) < 400:
        blocks.append(b"x" * (4 << 20))
        time.sleep(0.001)
    return float(len(blocks))


def eat_memory_in_a_child(path: str) -> float:
    child = multiprocessing.get_context("fork").Process(target=eat_memory, args=(path,))
    child.start()
    child.join()
    return 1.0


def allocate_8_gib(path: str) -> float:
    return float(len(b"x" * (8 << 30)))


def fork_bomb(path: str) -> None:
    """Twice as many with each generation: 128 in less than a second, and 256 at most, should nobody stop it."""
    for _ in range(8):
        os.fork()
        time.sleep(0.1)
    time.sleep(600)


def deep_recursion_in_c(path: str) -> str:
    sys.setrecursionlimit(10**9)
    nested: list[Any] = []
    for _ in range(10**6):
        nested = [nested]
    return repr(nested)


def busy_threads(path: str) -> None:
    threads = [threading.Thread(target=tower_of_nines, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()


def stopped(path: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def memory_error(path: str) -> None:
    raise MemoryError


def close_files(path: str) -> None:
    os.closerange(3, 100)


def return_none(path: str) -> None:
    return None


def return_nan(path: str) -> float:
    return float("nan")


def return_text(path: str) -> str:
    return "1.0"


def return_nested_infinity(path: str) -> dict[str, Any]:
    return {"score": 1.0, "parts": [float("inf")]}


def return_dict(path: str) -> dict[str, Any]:
    return {"score": 1.0, "parts": [1, None, "text"]}


def return_numpy(path: str) -> Any:
    import numpy

    return numpy.float32(0.5)


def print_loudly(path: str) -> float:
    print("printed by the reward function")
    subprocess.run(["echo", "printed by its child"], check=True)
    return 1.0


def terminate_own_child(path: str) -> float:
    child = subprocess.Popen(["sleep", "600"])
    child.terminate()
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    forked.terminate()
    forked.join(5)
    return float(child.wait(5) == -signal.SIGTERM and forked.exitcode == -signal.SIGTERM)


def die_idle(path: str) -> float:
    threading.Timer(0.05, lambda: os._exit(4)).start()
    return 1.0


def own_pid(path: str) -> float:
    return float(os.getpid())


def tell_pid_and_hang(path: str) -> None:
    Path(path).write_text(f"{os.getpid()}\n")
    _fork_sleeper(path)
    ignored_sigterm(path)


def _fork_sleeper(path: str) -> None:
    if os.fork() == 0:
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
        os._exit(0)
