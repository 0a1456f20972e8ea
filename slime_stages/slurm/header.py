"""sbatch/STAGE.sbatch: a script that `sbatch` runs by hand, and what the jobs submitted for that stage look like.

    #!/bin/bash
    #SBATCH --partition=gpu                 options of sbatch
    source .venv/bin/activate               set-up, as many lines as needed
    exec python -m stages.rollout "$@"      the program; what stands before `-m` runs Python in submitted jobs, too

sbatch judges the options; only what slime-stages must set itself is refused here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slime_stages.errors import UsageError
from slime_stages.slurm.options import BARE, LETTERS, OWNED, RIVALS, SEVERAL_TASKS, TASK_COUNTS, WORDS_OF

DIRECTIVE = "#SBATCH"
PROGRAM = re.compile(
    r"""exec \s+ (?P<srun> srun \s+ (?:-\S+\s+)* )? (?P<before>.*?)
        (?: (?P<python>\S*python\S*) \s+ -m \s+ stages\.(?P<stage>\w+)
          | (?P<script>\S*slime-stages) \s+ (?P<command>advance|serve) )
        \s+ "\$@" \s*""",
    re.VERBOSE,
)
COMMANDS = {"advance": "chain", "serve": "serve"}
"""Jobs that run a command instead of a stage's program, by the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a stage's script says, with the overrides of a command line."""

    path: Path
    stage: str
    directives: dict[str, str | bool]
    """sbatch's options by their long names without dashes in front; True for one without a value."""
    setup: tuple[str, ...] = ()
    """Lines between the options and the program."""
    python: str = "python"
    """What starts Python, for the shell: `python`, or `apptainer exec image.sif python`."""
    srun: tuple[str, ...] = ()
    """Options of the script's own `srun`, if it has one."""
    shell: str = "#!/bin/bash"
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each option in the file."""
    flags: dict[str, str] = field(default_factory=dict)
    """The flag of each option that came from a command line."""

    def place(self, option: str) -> str:
        """Where an option comes from: `sbatch/rollout.sbatch:3`, or `--slurm-partition`."""
        if option in self.flags:
            return self.flags[option]
        return f"{self.path}:{self.lines[option]}" if option in self.lines else str(self.path)

    def place_of_refusal(self, words: str) -> str:
        """Where the option comes from of which sbatch's words speak; the file alone if that cannot be told."""
        lower = words.lower()
        for option in self.directives:
            if any(word in lower for word in (f"--{option}", *WORDS_OF.get(option, ()))):
                return self.place(option)
        return str(self.path)


def read_header(path: Path, stage: str) -> Header:
    """Read a stage's script. UsageError, with FILE:LINE, for what cannot be in it."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(
            f"jobs of {stage} are described by {path}, which cannot be read: {error.strerror}",
            hint="type the command in the folder that holds sbatch/",
        ) from error
    rows = list(enumerate(text.splitlines(), start=1))
    commands = [(number, row) for number, row in rows if row.strip() and not row.lstrip().startswith("#")]
    program, last = _read_program(path, stage, rows, commands)
    first = commands[0][0]
    directives: dict[str, str | bool] = {}
    lines: dict[str, int] = {}
    for number, row in rows:
        if not re.match(rf"{DIRECTIVE}\s", row):
            continue
        if number > first:
            raise UsageError(
                f"{path}:{number}: sbatch does not read options below the first command, which is on line {first}",
                hint=f"move it above line {first}",
            )
        for option, value in _options(path, number, row):
            _check_option(f"{path}:{number}", stage, option, value)
            directives[option], lines[option] = value, number
    return Header(
        path=path,
        stage=stage,
        directives=directives,
        setup=tuple(row for number, row in rows if first <= number < last),
        python=program["before"] + (program["python"] or program["script"].removesuffix("slime-stages") + "python"),
        srun=tuple(shlex.split(program["srun"] or "")[1:]),
        shell=_shell(path, rows),
        lines=lines,
    )


def with_overrides(header: Header, overrides: Mapping[str, str | bool]) -> Header:
    """The header with options of a command line: `partition` for every stage, `rollout.gpus` for one.

    False takes an option away. UsageError for an option that slime-stages sets itself.
    """
    directives, flags = dict(header.directives), dict(header.flags)
    own = f"{header.stage}."
    mine = [(key, key) for key in overrides if "." not in key]
    mine += [(key.removeprefix(own), key) for key in overrides if key.startswith(own)]
    for option, key in mine:
        flag, value = f"--slurm-{key.replace('.', '-')}", overrides[key]
        _check_option(flag, header.stage, option, value)
        for rival in next((group for group in RIVALS if option in group), frozenset({option})):
            directives.pop(rival, None)
            flags.pop(rival, None)
        if value is not False:
            directives[option], flags[option] = value, flag
    lines = {option: line for option, line in header.lines.items() if option in directives and option not in flags}
    return replace(header, directives=directives, flags=flags, lines=lines)


def _read_program(
    path: Path, stage: str, rows: list[tuple[int, str]], commands: list[tuple[int, str]]
) -> tuple[re.Match[str], int]:
    """The last command, and the line that it begins on."""
    command = next((word for word, served in COMMANDS.items() if served == stage), None)
    wanted = f'exec slime-stages {command} "$@"' if command else f'exec python -m stages.{stage} "$@"'
    if not commands:
        raise UsageError(f"{path} has no command", hint=f"its last line is to be `{wanted}`")
    texts, number = dict(rows), commands[-1][0]
    program = texts[number]
    while texts.get(number - 1, "").endswith("\\"):
        number -= 1
        program = f"{texts[number][:-1]} {program}"
    found = PROGRAM.fullmatch(program.strip())
    if found is None or (found["stage"] or COMMANDS[found["command"]]) != stage:
        raise UsageError(
            f"{path}:{number}: the last command is `{program.strip()}`, which does not run {stage}",
            hint=f"write `{wanted}`; a container's command may stand before `python`",
        )
    return found, number


def _options(path: Path, number: int, row: str) -> Iterator[tuple[str, str | bool]]:
    """The options of one line, under their long names."""
    try:
        words = shlex.split(row.removeprefix(DIRECTIVE), comments=True)
    except ValueError as error:
        raise UsageError(f"{path}:{number}: {row}: {error}", hint="close the quotation") from error
    if words[:1] == ["hetjob"]:
        raise UsageError(f"{path}:{number}: a stage is one job, not a heterogeneous one", hint="remove the line")
    while words:
        word = words.pop(0)
        option, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", "")
        if re.fullmatch(r"-[A-Za-z].*", word):
            option, value = LETTERS.get(word[1], word[1]), word[2:].removeprefix("=")
            equals = "=" if value else ""
        if not option:
            raise UsageError(f"{path}:{number}: `{word}` is no option", hint="write --OPTION=VALUE")
        if not equals and option not in BARE and words and not words[0].startswith("-"):
            equals, value = "=", words.pop(0)
        yield option, value if equals else True


def _check_option(place: str, stage: str, option: str, value: str | bool) -> None:
    if option in OWNED:
        raise UsageError(f"{place}: --{option} is set by slime-stages", hint=f"remove it: {OWNED[option]}")
    if option in TASK_COUNTS and stage not in SEVERAL_TASKS and value not in ("1", "1-1", False):
        raise UsageError(
            f"{place}: {stage} runs as one task on one node, not with --{option}={value}",
            hint="set CPUs and GPUs for the one task, and more shards for more nodes",
        )


def _shell(path: Path, rows: list[tuple[int, str]]) -> str:
    first = rows[0][1]
    if not re.match(r"#!.*\bbash\b", first):
        raise UsageError(f"{path}:1: sbatch and slime-stages read a script for bash, not `{first}`", hint="#!/bin/bash")
    return first
