"""Any committed file is lost or altered: one command makes it again, and nothing else, and all is as before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_stages.launch.plans import ensure_plan
from slime_stages.launch.states import is_complete, iteration_states
from slime_stages.run.rundir import RunDir, find_run
from slime_stages.serving.engine import Engine
from slime_stages.weights.checkpoints import iteration_folder
from tests.e2e.runs import copy_run, leftovers, manifests, mend
from tests.e2e.stage_calls import Forker

NOT_COMMITTED = ("logs", "metrics", "engines", "latest_checkpointed_iteration.txt")


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def possible(run: RunDir, path: Path) -> list[Callable[[Path], None]]:
    """What can happen to a file of the run: to a link into the model folder, that it is lost."""
    return [delete, delete, delete] if (run.root / path).is_symlink() else [delete, truncate, flip]


def committed_files(run: RunDir) -> list[Path]:
    """All files by which the run is told, below its folder."""
    files = [path.relative_to(run.root) for path in sorted(run.root.rglob("*")) if not path.is_dir()]
    return [path for path in files if path.parts[0] not in NOT_COMMITTED and path.name not in NOT_COMMITTED]


def made_from(path: Path) -> set[str]:
    """The manifest of the call that makes a file again; none for what a run holds besides its iterations."""
    top, second = path.parts[0], path.parts[1] if len(path.parts) > 1 else ""
    if top == "iterations" and path.name != "plan.json":
        return {str(path.parent / "manifest.json" if "train" in path.parts else path.with_suffix(".json"))}
    if top == "checkpoints":
        return {f"iterations/{int(second.removeprefix('iter_')) - 1:06d}/train/manifest.json"}
    if top == "weights" and int(second) > 0:
        return {f"iterations/{int(second) - 1:06d}/sync/manifest.json"}
    return set()


def complaints(
    finished: RunDir, damaged: list[tuple[Path, Callable[[Path], None]]], folder: Path, forker: Forker
) -> str:
    """What is not as it was after a damage and a command, one a line."""
    before = manifests(finished)
    lines = []
    for number, (path, damage) in enumerate(damaged):
        run = copy_run(finished, folder / str(number))
        damage(run.root / path)
        mend(run, forker)
        after = manifests(run)
        remade = {name for name in after if after[name].started != before[name].started}
        if remade != made_from(path):
            lines.append(f"{damage.__name__} {path}: made again: {sorted(remade)}")
        if {name: m.content for name, m in after.items()} != {name: m.content for name, m in before.items()}:
            lines.append(f"{damage.__name__} {path}: other contents")
        states = [item for i in (0, 1) for item in iteration_states(run, ensure_plan(run, i), deep=True)]
        lines += [f"{damage.__name__} {path}: {s.call.title} {s.state.reason}" for s in states if not s.state.is_fresh]
        lines += [f"{damage.__name__} {path}: left {name}" for name in leftovers(run)]
        lines += [
            f"{damage.__name__} {path}: no {name}"
            for name in committed_files(finished)
            if not (run.root / name).exists()
        ]
    return "\n".join(lines)


def test_a_committed_file_that_is_lost_or_altered_is_put_back_by_the_same_command(
    finished: RunDir, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    files = committed_files(finished)[::2]
    cases = [(path, possible(finished, path)[number % 3]) for number, path in enumerate(files)]

    found = complaints(finished, cases, tmp_path, forker)

    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_every_committed_file_may_be_lost_or_altered_in_any_way(
    finished: RunDir, engine: Engine, forker: Forker, tmp_path: Path, kind: int
) -> None:
    cases = [(path, possible(finished, path)[kind]) for path in committed_files(finished)]

    found = complaints(finished, cases, tmp_path, forker)

    assert not found, found


def test_what_retention_has_removed_is_not_missed(run: RunDir, forker: Forker) -> None:
    shutil.rmtree(iteration_folder(run.checkpoints_path, 1))
    shutil.rmtree(run.weights_path(1))
    before = manifests(run)
    lost = "iterations/000000/reward/shard-00001-of-00002.json"
    delete(run.root / lost)

    mend(run, forker)

    after = manifests(run)
    assert {name for name in after if after[name].started != before[name].started} == {lost}
    assert [path.name for path in sorted(run.checkpoints_path.glob("iter_*"))] == ["iter_0000002"]


def test_what_cannot_be_made_again_and_is_not_needed_does_not_stop_the_run(
    run: RunDir, forker: Forker, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run.weights_path(1))
    delete(run.shard_path("rollout", 1, 0, 2))

    mend(run, forker, count=1)

    assert all(item.state.is_fresh for item in iteration_states(run, ensure_plan(run, 2)))
    assert "warning: rollout 1/0 is corrupt" in capsys.readouterr().err


def test_going_on_mends_what_the_next_iteration_starts_from(run: RunDir, forker: Forker, engine: Engine) -> None:
    before = manifests(run)
    flip(iteration_folder(run.checkpoints_path, 2) / "optimizer__0_1.distcp")
    flip(run.weights_path(2) / "model.safetensors")

    mend(run, forker, count=1)

    after = manifests(run)
    remade = {name for name in before if after[name].started != before[name].started}
    assert remade == {"iterations/000001/train/manifest.json", "iterations/000001/sync/manifest.json"}
    assert is_complete(run, 2)


def test_a_lost_identity_is_read_from_a_plan_and_a_plan_of_another_run_is_replaced(run: RunDir, forker: Forker) -> None:
    identity, plan = run.run_id(), ensure_plan(run, 1)

    delete(run.identity_path)
    assert find_run(run.root).run_id() == identity
    run.plan_path(1).write_bytes(plan.model_copy(update={"run_id": "other-12345678"}).to_bytes())
    mend(run, forker)

    assert ensure_plan(run, 1) == plan
    assert run.run_id() == identity
