"""Why a server did not start, in the words of its own log."""

from __future__ import annotations

import re
from pathlib import Path

from slime_stages.errors import InternalError, SlimeStagesError, UsageError

PROGRAMS = {"engine": "sglang", "router": "smg"}
TAIL_BYTES = 200_000
LONGEST_LINE = 500
"""SGLang prints all its arguments in one line."""

REFUSED_FLAG = re.compile(r"^.*launch_(?:server|router).*: error: (.*)$|^(?:sglang.*)?error: (.*)$")
RAISED = re.compile(r"^(?:\[[^]]*\] )?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b.*")
OUT_OF_MEMORY = re.compile(r"out of memory|not enough (?:gpu )?memory|cannot allocate memory|bad_alloc", re.IGNORECASE)
PORT_TAKEN = re.compile(
    r"address already in use|port \d+ is already in use|port at \d+ is not available", re.IGNORECASE
)
CAUSED = "The above exception was the direct cause of the following exception:"
NO_ENCODER = re.compile(r"(\w+) is not supported for encoder disaggregation")
MISSING_LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")
BENIGN = ("/freeze_gc", "AssertionError: daemonic", "KeyboardInterrupt")
"""SGLang collects its garbage by a request to itself, which fails while the server is not listening yet."""


def read_log(log: Path, start: int = 0) -> list[str]:
    """The last lines of `log` that were written after its byte `start`."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line[:LONGEST_LINE] for line in lines if line.strip()]


def is_port_clash(lines: list[str]) -> bool:
    return any(PORT_TAKEN.search(line) for line in lines)


def explain_failure(lines: list[str], code: int, log: Path, *, program: str = "engine") -> SlimeStagesError:
    """The error to raise for a server that ended with `code`."""
    hint = f"less {log}"
    for line in reversed(lines):
        if match := REFUSED_FLAG.match(line):
            return UsageError(f"{PROGRAMS[program]} refuses its options: {match[1] or match[2]}", hint=hint)
    if memory := next((line for line in reversed(lines) if OUT_OF_MEMORY.search(line)), None):
        hint = f"lower --sglang-mem-fraction-static or --sglang-max-total-tokens, or give the job more memory; {hint}"
        return InternalError(f"the engine ran out of memory: {memory.strip()}", hint=hint)
    if code == 128 + 9 and not any(RAISED.match(line) for line in lines):
        return InternalError(f"the {program} was killed while it started, as happens when memory runs out", hint=hint)
    raised = _last_raised(lines)
    words = " / ".join(line.strip() for line in raised or lines[-3:] or ["it wrote nothing"])
    if model := NO_ENCODER.search(words):
        hint = f"take the encoder groups out of the file of --sglang-config: other engines encode images, too; {hint}"
        return UsageError(f"sglang has no encoder engines for {model[1]}", hint=hint)
    if library := MISSING_LIBRARY.search(words):
        hint = f"install the system's package that has {library[1]}, where the {program} runs; {hint}"
        return UsageError(f"the {program} does not start: {words}", hint=hint)
    return InternalError(f"the {program} ended with exit code {code}: {words}", hint=hint)


def _last_raised(lines: list[str]) -> list[str]:
    """The last exception and, after it, those that it was raised from; empty if there is none."""
    at = [
        number for number, line in enumerate(lines) if RAISED.match(line) and not any(word in line for word in BENIGN)
    ]
    chain = at[-1:]
    for before, after in zip(reversed(at[:-1]), reversed(at[1:]), strict=True):
        if CAUSED not in lines[before:after]:
            break
        chain.append(before)
    return [lines[number] for number in chain]
