"""One attempt to run a program at E2B: its line of shell, what it writes, and how it ends.

The server keeps a command's stream open while anything that it left behind still holds it. So the line ends with the
program's exit code, behind its last stderr, and nobody waits for more.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Any

from slime_stages.agent.sandbox.capture import Excerpt
from slime_stages.agent.sandbox.shell import Ended, Program

_DRAIN_SECONDS = 0.2
"""For what is still under way when a program has ended."""
_KILLED = 137
_LONGEST_ENDING = 64


class Command:
    """It is found again by its mark, which all that it starts inherits."""

    def __init__(self, program: Program, mark: str) -> None:
        self._program = program
        self._mark = mark
        self._ending = re.compile(rb"\x00%b:(\d+)\x00" % mark.encode())
        self._held = b""
        """Of stderr: what may be the beginning of the ending."""
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stdout, self._stderr = Excerpt(program.output_bytes), Excerpt(program.output_bytes)

    def line(self, stdin: str | None) -> str:
        """For a login shell, whose profile may have set anything; `stdin` is a file within, which is used up.

        The shell has no stderr of its own: it would tell there which program was killed, with all its variables.
        """
        given = f"exec < {stdin}; rm -f {stdin}; " if stdin is not None else ""
        variables = [f"{name}={value}" for name, value in self._program.environment.items()]
        words = shlex.join(["env", *variables, *self._program.arguments])
        return f"{given}exec 3>&2 2> /dev/null; {words} 2>&3 3>&-; printf '\\0%s:%d\\0' {self._mark} $? >&3"

    def take_stdout(self, text: str) -> None:
        self._stdout.add(text.encode())

    def take_stderr(self, text: str) -> None:
        content = self._held + text.encode()
        if found := self._ending.search(content):
            content, self._held = content[: found.start()] + content[found.end() :], b""
            if not self._code.done():
                self._code.set_result(int(found[1]))
        else:
            start = content.rfind(b"\0", max(0, len(content) - _LONGEST_ENDING))
            content, self._held = (content, b"") if start < 0 else (content[:start], content[start:])
        self._stderr.add(content)

    async def end(self, handle: Any) -> int:
        """The program's code; an error of the SDK's if the stream ends before it."""
        stream = asyncio.ensure_future(handle.wait())
        try:
            await asyncio.wait((stream, self._code), return_when=asyncio.FIRST_COMPLETED)
            if not self._code.done():
                return _code_of_shell(stream)
            await asyncio.wait((stream,), timeout=_DRAIN_SECONDS)
            return self._code.result()
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    def ended(self, code: int | None) -> Ended:
        """With all that was written so far."""
        self._stderr.add(self._held)
        return Ended(
            code=code,
            stdout=self._stdout.content(),
            stderr=self._stderr.content(),
            dropped_bytes=self._stdout.dropped_bytes,
        )


def _code_of_shell(stream: asyncio.Future[Any]) -> int:
    """Of a shell that was killed with its program, or could not start it."""
    error = stream.exception()
    code = getattr(error or stream.result(), "exit_code", None)
    if code is None:
        assert error is not None
        raise error
    return code if code >= 0 else _KILLED
