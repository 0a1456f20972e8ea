"""`import slime.…` where no slime is installed, and where one is."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from slime_stages.compat import finder
from slime_stages.compat.names import NAMES
from slime_stages.errors import UsageError
from slime_stages.plugins import load_function
from slime_stages.sample import Sample, Status

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "pyarrow", "aiohttp", "sympy")


@pytest.fixture(autouse=True)
def _installed() -> None:
    finder.install()


@pytest.mark.parametrize("module", NAMES)
def test_every_name_of_the_table_leads_somewhere(module: str) -> None:
    stand_in = importlib.import_module(f"slime.{module}")

    assert {name: callable(getattr(stand_in, name)) or name.isupper() for name in NAMES[module]} == dict.fromkeys(
        NAMES[module], True
    )


def test_the_page_lists_every_name() -> None:
    rows = [line.split("|")[1:3] for line in (ROOT / "docs/plug-ins.md").read_text().splitlines() if line[:1] == "|"]
    listed = {row[0].strip(" `"): {name.strip(" `") for name in row[1].split(",")} for row in rows}

    assert {module: listed.get(module) for module in NAMES} == {module: {*names} for module, names in NAMES.items()}


def test_a_sample_is_the_same_class_with_its_status_inside() -> None:
    types = importlib.import_module("slime.utils.types")

    assert types.Sample is Sample
    assert types.Sample.Status.ABORTED is Status.ABORTED
    assert types.Sample(status=types.Sample.Status.TRUNCATED).to_dict()["status"] == "truncated"


def test_a_name_that_is_missing_says_what_there_is_and_where_to_ask() -> None:
    with pytest.raises(ImportError, match=r"no `Box` of `slime.utils.misc`; it has SingletonMeta, .* issue"):
        exec("from slime.utils.misc import Box")
    with pytest.raises(ImportError, match=r"no `router` of `slime`; it has agent, .*, ray, rollout, utils"):
        exec("import slime.router.router")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("from slime.ray.rollout import RolloutManager", "nothing runs in Ray here"),
        ("import slime.backends.megatron_utils.actor", "the trainer is none of slime's"),
        ("from slime.utils.arguments import parse_args", "settings are those of the run"),
        ("from slime.utils.wandb_utils import init_wandb_primary", "`slime.utils.logging_utils.log` tells whatever"),
    ],
)
def test_what_has_no_counterpart_says_what_is_in_its_place(line: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason):
        exec(line)


def test_a_plug_in_may_try_for_a_name_and_do_without() -> None:
    misc = importlib.import_module("slime.utils.misc")

    assert getattr(misc, "Box", None) is None
    assert not hasattr(misc, "Box")


def test_a_setting_may_name_a_function_of_slimes() -> None:
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"

    keep = load_function(path, like="keep(args, samples)")

    assert keep.__module__ == "slime_stages.generation.filters"


def test_a_plug_in_that_needs_more_is_refused_with_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("from slime.ray.rollout import RolloutManager\ndef f(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UsageError, match=r"`needs_more.f` cannot be imported: .*no `RolloutManager`"):
        load_function("needs_more.f")


def test_an_installed_slime_comes_first_with_all_that_it_lacks(tmp_path: Path) -> None:
    package = tmp_path / "slime" / "utils"
    package.mkdir(parents=True)
    (tmp_path / "slime" / "__init__.py").write_text("real = True")
    (package / "__init__.py").write_text("")
    (package / "types.py").write_text("class Sample: real = True")

    said = run_python("from slime.utils.types import Sample; print(Sample.real)\nimport slime.rollout", path=tmp_path)

    assert said.stdout.strip() == "True"
    assert "No module named 'slime.rollout'" in said.stderr


def test_a_folder_that_is_only_called_slime_is_none(tmp_path: Path) -> None:
    (tmp_path / "slime" / "docs").mkdir(parents=True)

    said = run_python("import slime\nfrom slime.utils.types import Sample; print(Sample.__module__)", path=tmp_path)

    assert said.stdout.strip() == "slime_stages.sample"


def test_looking_costs_nothing_heavy() -> None:
    said = run_python(f"import slime.rollout.sglang_rollout, sys; print(*[n for n in {HEAVY} if n in sys.modules])")

    assert said.stdout.strip() == ""


def run_python(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process where the finder is installed, with a folder to import from before all others."""
    first = [] if path is None else [f"sys.path.insert(0, {str(path)!r})"]
    lines = ["import sys", "from slime_stages.compat import finder", "finder.install()", *first, code]
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
