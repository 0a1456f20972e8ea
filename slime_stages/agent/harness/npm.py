"""Put an agent's npm package into a sandbox that has no network of its own."""

from __future__ import annotations

import asyncio
import lzma
import os
from pathlib import Path

from slime_stages.agent.harness.base import USER, path
from slime_stages.agent.sandbox.protocol import Sandbox
from slime_stages.errors import MissingInputError, UsageError

NODE_TARBALL = "SLIME_AGENT_NODE_TARBALL"
_PREFIX = f"/home/{USER}/.local"
_TRIES = 3
_SECONDS = 300.0


async def install_npm_cli(sandbox: Sandbox, command: str, tarball_variable: str) -> None:
    """Install the package at the path that `tarball_variable` holds, with Node from `NODE_TARBALL` where there is none.

    Nothing is done where the command is there already: in an image, or in a bind at /opt/agents.
    """
    if await _has(sandbox, command):
        return
    package = _tarball(tarball_variable, f"{command} is not in the sandbox")
    await sandbox.exec(["mkdir", "-p", _PREFIX], user=USER, check=True)
    if not await _has(sandbox, "npm"):
        node = _tarball(NODE_TARBALL, "Node is not in the sandbox")
        await sandbox.write_file(f"{_PREFIX}/node.tar", await asyncio.to_thread(_unpacked, node), USER)
        unpack = f"cd {_PREFIX} && tar --strip-components=1 -xf node.tar && rm node.tar"
        await sandbox.exec(unpack, user=USER, check=True)
    await sandbox.write_file(f"{_PREFIX}/package.tgz", package, USER)
    install = f"npm install --global --no-audit --no-fund --prefix {_PREFIX} {_PREFIX}/package.tgz"
    for attempt in range(_TRIES):
        is_last = attempt == _TRIES - 1
        ended = await sandbox.exec(install, user=USER, env={"PATH": path()}, timeout=_SECONDS, check=is_last)
        if ended.code == 0:
            return


async def _has(sandbox: Sandbox, command: str) -> bool:
    return (await sandbox.exec(["sh", "-c", 'command -v "$0"', command], user=USER, env={"PATH": path()})).code == 0


def _tarball(variable: str, why: str) -> Path:
    name = os.environ.get(variable)
    if not name:
        raise UsageError(f"{why}, and {variable} is not set", hint="bind a folder with its programs at /opt/agents")
    if not os.path.isfile(name):
        raise MissingInputError(f"{variable} is {name}, which is no file", hint=f"npm pack, then export {variable}=…")
    return Path(name)


def _unpacked(path: Path) -> bytes:
    """Images often lack `xz`."""
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
