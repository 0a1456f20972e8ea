"""The rules of the house as code: who may import whom, where heavy parts live, and how long a file may be.

Imports are read from the source, those within functions too; nothing is imported to find out.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY, PROGRAMS = "slime_stages", "stages"
LONGEST_FILE = 300

FLOORS = (
    {"errors"},
    {"data", "run", "sample", "prompts", "plugins", "drain", "progress", "trace", "isolation", "passrate"},
    {"config"},
    {"stage", "named_rewards", "lineage", "generation", "metrics", "tracking"}
    | {"reading", "serving", "agent", "rewards", "weights", "compat"},
    {"slurm"},
    {"launch"},
    {"cli"},
)
"""Rooms of the library from the ground up. A room may import its own floor and those below."""

HOMES = {
    "torch": (
        f"{PROGRAMS}/train/",
        f"{PROGRAMS}/sync/",
        f"{LIBRARY}/weights/",
        f"{LIBRARY}/serving/cpu_stand_ins/",  # the engine's process alone sees these
    ),
    "megatron": (f"{PROGRAMS}/train/", f"{PROGRAMS}/sync/"),
    "typer": (f"{LIBRARY}/cli/",),
    "click": (f"{LIBRARY}/cli/",),
    "submitit": (f"{LIBRARY}/slurm/",),
    "duckdb": (f"{LIBRARY}/reading/sql.py", f"{LIBRARY}/cli/query.py"),
    "ray": (),
}
"""Packages that live in these folders only."""

LATE = ("torch", "pyarrow", "transformers", "sympy", "datasets", "pandas")
"""Packages that `slime-stages --help` must not load."""


def sources() -> list[Path]:
    return sorted(path for folder in (LIBRARY, PROGRAMS) for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, int], ...]:
    """(module, line) of every import in a file; `from a import b` counts as `a.b`, which may be a module."""
    return tuple(_imports(ast.parse(path.read_text()), path))


def _imports(tree: ast.AST, path: Path) -> Iterator[tuple[str, int]]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def room_of(module: str) -> str | None:
    """`config` for `slime_stages.config.train`; None for a name of the package itself, such as its version."""
    parts = module.split(".")
    known = {name for floor in FLOORS for name in floor}
    return parts[1] if len(parts) > 1 and (parts[1] in known or _is_module(parts[1])) else None


def _is_module(name: str) -> bool:
    return (ROOT / LIBRARY / f"{name}.py").exists() or (ROOT / LIBRARY / name).is_dir()


def floor_of(room: str) -> int:
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), -1)


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_room_of_the_library_has_its_floor() -> None:
    rooms = {path.relative_to(ROOT / LIBRARY).parts[0].removesuffix(".py") for path in (ROOT / LIBRARY).rglob("*.py")}

    assert sorted(room for room in rooms - {"__init__", "__main__"} if floor_of(room) < 0) == []


def test_imports_within_the_library_go_down_or_stay_on_their_floor() -> None:
    upward = []
    for path in (ROOT / LIBRARY).rglob("*.py"):
        own = path.relative_to(ROOT / LIBRARY).parts[0].removesuffix(".py")
        for module, line in imports_of(path):
            room = room_of(module) if module.split(".")[0] == LIBRARY else None
            if room is not None and floor_of(room) > floor_of(own):
                upward.append(f"{place(path, line)}: {own} imports {room}")

    assert upward == []


def test_the_library_does_not_import_the_programs() -> None:
    found = [
        f"{place(path, line)}: {module}"
        for path in (ROOT / LIBRARY).rglob("*.py")
        for module, line in imports_of(path)
        if module.split(".")[0] == PROGRAMS
    ]

    assert found == []


def test_no_stage_imports_another_stage() -> None:
    found = []
    for path in (ROOT / PROGRAMS).rglob("*.py"):
        own = path.relative_to(ROOT / PROGRAMS).parts[0].removesuffix(".py")
        for module, line in imports_of(path):
            parts = module.split(".")
            if parts[0] == PROGRAMS and len(parts) > 1 and parts[1] != own:
                found.append(f"{place(path, line)}: {own} imports {module}")

    assert found == []


def test_programs_leave_the_launcher_and_the_command_line_alone() -> None:
    """But for `__main__.py`: `python -m stages.rollout` is the command `slime-stages rollout`."""
    found = [
        f"{place(path, line)}: {module}"
        for path in (ROOT / PROGRAMS).rglob("*.py")
        if path.name != "__main__.py"
        for module, line in imports_of(path)
        if module.startswith((f"{LIBRARY}.launch", f"{LIBRARY}.cli"))
    ]

    assert found == []


@pytest.mark.parametrize("package", HOMES)
def test_a_heavy_package_is_imported_at_home_only(package: str) -> None:
    found = [
        f"{place(path, line)}: {module}"
        for path in sources()
        for module, line in imports_of(path)
        if module.split(".")[0] == package and not str(path.relative_to(ROOT)).startswith(HOMES[package])
    ]

    assert found == []


def test_nothing_is_imported_from_the_tests_and_the_examples() -> None:
    found = [
        f"{place(path, line)}: {module}"
        for path in sources()
        for module, line in imports_of(path)
        if module.split(".")[0] in ("tests", "examples", "benchmarks")
    ]

    assert found == []


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}

    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


@pytest.mark.parametrize(
    "module", ["errors", "run.rundir", "run.plan", "run.manifest", "run.commit", "plugins", "progress", "sample"]
)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    code = f"import sys, {LIBRARY}.{module}; print(*[name for name in {LATE!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
