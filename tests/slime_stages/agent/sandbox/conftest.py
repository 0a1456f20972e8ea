"""Sandboxes of every kind, of real parts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_stages.agent.sandbox.apptainer import ApptainerSandbox
from slime_stages.agent.sandbox.e2b import E2BSandbox
from slime_stages.agent.sandbox.local import LocalSandbox
from tests.slime_stages.agent.sandbox.apptainer_install import Installation, install
from tests.slime_stages.agent.sandbox.e2b_server import API_KEY, E2BServer, e2b_server
from tests.slime_stages.agent.sandbox.local_sandboxes import SMALL, WAYS, OpenBox

_SHUT = [*WAYS, pytest.param("apptainer", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def apptainer() -> Installation:
    return install()


@pytest.fixture
def e2b_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[E2BServer]:
    with e2b_server() as server:
        variables = {"E2B_API_KEY": API_KEY, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(params=[*_SHUT, "e2b"])
def box(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenBox:
    """Gives a sandbox of each kind, with changes to its settings."""
    return _opener(request.param, request, tmp_path, monkeypatch)


@pytest.fixture(params=_SHUT)
def shut_box(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenBox:
    """The same for the kinds that hold programs back on this machine."""
    return _opener(request.param, request, tmp_path, monkeypatch)


def _opener(kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenBox:
    if kind == "e2b":
        request.getfixturevalue("e2b_service")
        own: dict[str, Any] = {"workdir": str(tmp_path / "workspace")}
        return lambda **changes: E2BSandbox(dataclasses.replace(SMALL, **own, **changes))
    if kind == "apptainer":
        installed: Installation = request.getfixturevalue("apptainer")
        monkeypatch.setenv("PATH", f"{installed.folder}:{os.environ['PATH']}")
        own = {"image": str(installed.image)}
        return lambda **changes: ApptainerSandbox(dataclasses.replace(SMALL, **own, **changes))
    return lambda **changes: LocalSandbox(dataclasses.replace(SMALL, **changes), (kind,))  # type: ignore[arg-type]
