"""Apptainer itself, and an image: the machine's own program, or one in a Debian of its own, made once in a folder."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "slime-stages-tests" / "apptainer"
_PACKAGES = "apptainer,libffi8,procps,python3-minimal"
_HINT = "apt-get install mmdebstrap bubblewrap"
_USER = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
_OF_THE_ROOT = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "boot")
"""What comes of the other Debian; the rest is this machine's."""


@dataclass(frozen=True)
class Installation:
    folder: Path
    """With a program `apptainer`, for PATH."""
    image: Path
    """A sandbox folder with Debian's shell, Python and `ps`."""
    view: tuple[str, ...]
    """Bubblewrap's options for what Apptainer sees of this machine."""

    def as_user(self, program: str, home: Path) -> list[str]:
        """A command that runs a program of Python as somebody without any rights, who owns `home`."""
        words = [sys.executable, "-c", program]
        if os.geteuid() != 0:
            return words
        shutil.chown(home, "nobody", "nogroup")
        repository = Path(__file__).parents[4]
        hidden = ["--tmpfs", str(Path.home())]
        for path in (Path(sys.prefix), Path(sys.base_prefix), repository, _CACHE):
            for folder in reversed(path.parents):
                hidden += ["--perms", "0755", "--dir", str(folder)] if Path.home() in folder.parents else []
            hidden += ["--bind", str(path), str(path)]
        rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        path = "/usr/local/bin:/usr/bin:/bin"
        variables = [f"HOME={home}", f"PATH={path}", f"PYTHONPATH={repository}", "PYTHONDONTWRITEBYTECODE=1"]
        return ["bwrap", *self.view, *hidden, *rights, "--chdir", "/", "--", *_USER, "env", *variables, *words]


def install() -> Installation:
    """What is there already, or was made before; else it takes a minute, and a network."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root, image = _CACHE / "root", _CACHE / "image"
        if not root.exists():
            _make_root(root)
        own = shutil.which("apptainer")
        view = ("--dev-bind", "/", "/") if own else _view(root)
        folder = Path(own).parent if own else _program(view)
        if not image.exists():
            _call([str(folder / "apptainer"), "build", "--force", "--sandbox", f"{image}.new", str(root)])
            os.rename(f"{image}.new", image)
        return Installation(folder, image, view)


def _make_root(root: Path) -> None:
    missing = [name for name in ("mmdebstrap", "bwrap") if shutil.which(name) is None]
    if missing:
        pytest.fail(f"tests of Apptainer make a Debian of their own, which takes {' and '.join(missing)}: {_HINT}")
    unfinished = root.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ["--variant=minbase", f"--include={_PACKAGES}", "--aptopt=Acquire::Check-Valid-Until false"]
    _call(["mmdebstrap", *options, "sid", str(unfinished)])
    (unfinished / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    unfinished.chmod(0o755)
    unfinished.rename(root)


def _view(root: Path) -> tuple[str, ...]:
    words = ["--bind", str(root), "/"]
    for path in sorted(Path("/").iterdir()):
        if path.is_dir() and path.name not in _OF_THE_ROOT:
            words += ["--dev-bind", str(path), str(path)]
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return tuple(words)


def _program(view: tuple[str, ...]) -> Path:
    folder = _CACHE / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "apptainer"
    program.write_text(f'#!/bin/sh\nexec bwrap {shlex.join(view)} --chdir "$PWD" -- /usr/bin/apptainer "$@"\n')
    program.chmod(0o755)
    return folder


def _call(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        pytest.fail(f"`{' '.join(command)}` failed; it takes a network, once, and root: {ended.stderr[-2000:]}")
