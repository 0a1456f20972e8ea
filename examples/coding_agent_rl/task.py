"""A row of the prompt data as a task: a folder of code, what is wrong with it, and how to tell that it is mended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_stages.agent.harness.base import OUTPUT_FOLDER
from slime_stages.agent.sandbox.protocol import Sandbox
from slime_stages.errors import DataError

STATEMENT = "PROBLEM_STATEMENT.md"
_GIT = {
    "GIT_AUTHOR_NAME": "task",
    "GIT_AUTHOR_EMAIL": "task@localhost",
    "GIT_COMMITTER_NAME": "task",
    "GIT_COMMITTER_EMAIL": "task@localhost",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
"""So that git works for whoever owns the folder."""
_BEGIN = "git rev-parse HEAD > /dev/null 2>&1 || { git init -q && git add -A && git commit -qm task; }"
_DIFF = f"git add -N . && git diff --binary -- . ':!{STATEMENT}' ':!{OUTPUT_FOLDER}'"
_PATCH = "/tmp/model.patch"
_APPLY = (f"git apply --3way {_PATCH}", f"git apply {_PATCH}", f"patch -p1 < {_PATCH}")
"""Tried in turn."""
_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem."""

    instance_id: str
    image: str | None
    workdir: str
    problem_statement: str
    files: Mapping[str, str]
    """Written into the working folder, for tasks that are not in their image."""
    pre_commands: Sequence[str]
    """Run there before the agent comes, and before the tests."""
    eval_files: Mapping[str, str]
    """Tests that the agent does not see."""
    eval_cmd: str
    """Ends with 0 if the problem is solved."""

    @staticmethod
    def of(metadata: Mapping[str, Any]) -> Task:
        """From `metadata`; DataError for one that nobody could grade."""
        grader = metadata.get("eval_cmd") or (metadata.get("remote_env_info") or {}).get("f2p_script")
        if not grader or not metadata.get("workdir"):
            raise DataError(
                f"a task without `eval_cmd` or `workdir`: {sorted(metadata)}", hint="see this example's README.md"
            )
        before = metadata.get("pre_commands") or metadata.get("before_repo_set_cmd") or []
        return Task(
            instance_id=str(metadata.get("instance_id", "task")),
            image=metadata.get("image"),
            workdir=metadata["workdir"],
            problem_statement=metadata.get("problem_statement") or "",
            files=metadata.get("files") or {},
            pre_commands=[before] if isinstance(before, str) else before,
            eval_files=metadata.get("eval_files") or {},
            eval_cmd=grader,
        )

    async def prepare(self, sandbox: Sandbox) -> None:
        """Bring the working folder to where agent and tests begin."""
        await self._write(sandbox, self.files)
        for command in self.pre_commands:
            await self._run(sandbox, command)
        await self._run(sandbox, _BEGIN)

    async def state(self, sandbox: Sandbox) -> None:
        """Put down what the agent is to do."""
        await sandbox.write_file(f"{self.workdir}/{STATEMENT}", self.problem_statement)

    async def diff(self, sandbox: Sandbox) -> str:
        """What the agent changed."""
        return (await sandbox.exec(self._here(_DIFF), env=_GIT, timeout=_SECONDS, check=True)).stdout

    async def grade(self, sandbox: Sandbox, diff: str, seconds: float) -> tuple[float, dict[str, Any]]:
        """In a fresh sandbox: 1.0 if the tests pass with the agent's changes, else 0.0, and what to note of it."""
        await self.prepare(sandbox)
        if diff and not await self._apply(sandbox, diff):
            return 0.0, {"applied_cleanly": False, "grading_solved": False}
        await self._write(sandbox, self.eval_files)
        ended = await sandbox.exec(self._here(self.eval_cmd), timeout=seconds)
        return float(ended.code == 0), {"applied_cleanly": True, "grading_solved": ended.code == 0}

    async def _apply(self, sandbox: Sandbox, diff: str) -> bool:
        await sandbox.write_file(_PATCH, diff)
        for command in _APPLY:
            if (await sandbox.exec(self._here(command), env=_GIT, timeout=_SECONDS)).code == 0:
                return True
        return False

    async def _write(self, sandbox: Sandbox, files: Mapping[str, str]) -> None:
        for name, content in files.items():
            await sandbox.write_file(f"{self.workdir}/{name}", content)

    async def _run(self, sandbox: Sandbox, command: str) -> None:
        await sandbox.exec(self._here(command), env=_GIT, timeout=_SECONDS, check=True)

    def _here(self, command: str) -> str:
        return f"cd {self.workdir} && {{ {command}\n}}"
