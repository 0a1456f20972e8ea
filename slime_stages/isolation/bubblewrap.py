"""The same enclosure through `bwrap`, which some distributions allow to do what they forbid to others.

The first process within then needs an interpreter, which is bound into the view. Each scratch folder has the limit
on size for itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from slime_stages.isolation import keeper
from slime_stages.isolation.enclosure import KERNEL_CONTROLS, USER, Enclosure, view_of

CORE_PROCESSES = 2
"""bwrap itself, outside, and the keeper within."""
_KEEPER, _PYTHON = "/run/keeper.py", "/run/python"


def is_installed() -> bool:
    return shutil.which("bwrap") is not None


def arguments(enclosure: Enclosure, control: int) -> list[str]:
    """The command that starts the keeper within the enclosure."""
    view = view_of(enclosure)
    words = ["bwrap", "--unshare-all", *(["--share-net"] if enclosure.has_network else [])]
    words += ["--unshare-user", "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox"]
    words += ["--die-with-parent", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    words += ["--disable-userns"] if _can("--disable-userns") else []
    if enclosure.image is not None:
        words += ["--ro-bind", os.path.realpath(enclosure.image), "/"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path in [f"/proc/{name}" for name in KERNEL_CONTROLS if os.path.exists(f"/proc/{name}")]:
        words += ["--ro-bind", path, path]
    for path, target in view.links.items():
        words += ["--symlink", target, path]
    for folder in enclosure.scratch:
        words += ["--size", str(enclosure.scratch_bytes), "--tmpfs", folder]
    for path, content in view.files.items():
        words += ["--ro-bind-data", str(_file_of(content)), path]
    for bind in view.binds:
        words += ["--bind" if bind.writable else "--ro-bind", bind.source, bind.target]
    prefix, interpreter = os.path.realpath(sys.base_prefix), os.path.realpath(sys.executable)
    if not interpreter.startswith("/usr/"):
        words += ["--ro-bind", prefix, _PYTHON, "--setenv", "LD_LIBRARY_PATH", f"{_PYTHON}/lib"]
        interpreter = interpreter.replace(prefix, _PYTHON, 1)
    words += ["--ro-bind", os.path.realpath(keeper.__file__), _KEEPER]
    if enclosure.image is None:
        words += ["--remount-ro", "/"]
    limits = [str(enclosure.process_count), str(enclosure.open_files)]
    return [*words, "--", interpreter, "-I", "-S", "-B", _KEEPER, str(control), *limits]


def _can(option: str) -> bool:
    return option in subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout


def _file_of(content: str) -> int:
    descriptor = os.memfd_create("content", 0)
    os.write(descriptor, content.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
