"""Stands for `apptainer` on machines that have none: an instance is a process, and commands run on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(__file__).parent
"""It is copied to a folder of a test."""


def main(words: list[str]) -> None:
    with (STATE / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    if words[:2] == ["instance", "start"]:
        image, name = words[-2:]
        if not os.path.exists(image):
            sys.exit(f"FATAL: could not open image {image}")
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (STATE / name).write_text(str(process.pid))
    elif words[:2] == ["instance", "stop"]:
        os.kill(int((STATE / words[-1]).read_text()), signal.SIGKILL)
        (STATE / words[-1]).unlink()
    else:
        run(words[1:])


def run(words: list[str]) -> None:
    environment = {"PATH": os.environ["PATH"]}
    while not words[0].startswith("instance://"):
        option = words.pop(0)
        if option == "--env":
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        elif option == "--pwd":
            words.pop(0)
    assert (STATE / words[0].removeprefix("instance://")).exists()
    os.execvpe(words[1], words[1:], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
