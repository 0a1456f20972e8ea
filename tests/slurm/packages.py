"""Debian's packages of SLURM, installed where that is allowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLUSTER = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING = ("slurmdbd", "mariadb-server-core", "mariadb-client-core")

POLICY = Path("/usr/sbin/policy-rc.d")
"""While it says no, packages do not start their own daemons."""


class PackagesMissing(Exception):
    """SLURM is not here and may not be installed; the message says what to type."""


def ensure_packages(*, accounting: bool) -> None:
    """Install what is missing. PackagesMissing where this user or machine may not."""
    missing = _missing([*CLUSTER, *(ACCOUNTING if accounting else ())])
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    advice = f"a test cluster needs {', '.join(missing)}; type as root: {' '.join(command)}"
    if os.geteuid() != 0:
        raise PackagesMissing(advice)
    try:
        with _daemons_not_started():
            _install(command)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "output", None) or str(error)
        raise PackagesMissing(f"{advice}\n(it was tried here: {said.strip().splitlines()[-1]})") from error


def _missing(packages: list[str]) -> list[str]:
    query = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *packages]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return packages
    return [package for package in packages if f"{package} installed" not in listed]


def _install(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    locked = [command[0], "-o", "DPkg::Lock::Timeout=300", *command[1:]]

    def call(words: list[str]) -> None:
        subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=600
        )

    try:
        call(locked)
    except subprocess.CalledProcessError:  # the lists may be older than the archive
        call(["apt-get", "update"])
        call(locked)


@contextmanager
def _daemons_not_started() -> Iterator[None]:
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
