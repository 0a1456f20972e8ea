"""Evaluation sets from a YAML file: an entry before the file's defaults, these before the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.config import Config, ResolvedConfig, resolve
from slime_stages.config.eval_dataset import resolved_dataset, resolved_datasets
from slime_stages.errors import MissingInputError, UsageError
from tests.slime_stages.config.settings import SMALLEST, resolved

YAML = """\
eval:
  defaults:
    temperature: 0.5
    n_samples_per_eval_prompt: 4
    rm_type: math
  datasets:
    - name: aime
      path: aime.jsonl
      temperature: 0
      stop: "</answer>"
      metadata_overrides: {level: hard}
    - name: gsm8k
      path: /data/gsm8k.parquet
      rm_type: null
      max_response_len: 16
      custom_generate_function_path: my_agent.generate
"""


@pytest.fixture
def yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("eval.yaml").write_text(YAML)
    return Path("eval.yaml")


def refusal(yaml: Path, text: str, **settings: Any) -> str:
    yaml.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolved(eval_config="eval.yaml", **settings)
    return f"{caught.value}\n{caught.value.hint}"


def test_an_entry_comes_before_the_defaults_and_these_before_the_settings(yaml: Path) -> None:
    config = resolved(eval_config="eval.yaml", eval_temperature=0.9, eval_top_p=0.8, rollout_top_k=5).config

    aime, gsm8k = resolved_dataset(config, "aime"), resolved_dataset(config, "gsm8k")

    assert (aime.temperature, gsm8k.temperature) == (0.0, 0.5)
    assert (aime.top_p, aime.top_k) == (0.8, 5)
    assert (aime.n_samples_per_eval_prompt, gsm8k.n_samples_per_eval_prompt) == (4, 4)
    assert (aime.max_response_len, gsm8k.max_response_len) == (1024, 16)
    assert aime.stop == ("</answer>",)
    assert aime.metadata_overrides == {"level": "hard"}
    assert gsm8k.custom_generate_function_path == "my_agent.generate"


def test_null_is_no_value_and_hides_no_default(yaml: Path) -> None:
    assert resolved_dataset(resolved(eval_config="eval.yaml").config, "gsm8k").rm_type == "math"


def test_relative_paths_are_taken_from_the_current_directory(yaml: Path) -> None:
    config = resolved(eval_config="eval.yaml").config

    assert [dataset.path for _, dataset in config.eval.datasets] == [f"{Path.cwd()}/aime.jsonl", "/data/gsm8k.parquet"]


def test_the_file_is_read_once_and_frozen_with_the_config(yaml: Path) -> None:
    frozen = resolved(eval_config="eval.yaml").config.to_json_bytes()
    yaml.unlink()

    config = Config.from_json(frozen)

    assert list(resolved_datasets(config)) == ["aime", "gsm8k"]
    assert resolved_dataset(config, "aime").temperature == 0.0


@pytest.mark.parametrize("sources", [False, True])
def test_a_described_config_resolves_to_itself(yaml: Path, tmp_path: Path, sources: bool) -> None:
    first = resolve(None, SMALLEST | {"eval_config": "eval.yaml"})
    (tmp_path / "again.toml").write_text(first.describe(sources=sources))

    assert resolve(tmp_path / "again.toml").config == first.config


def test_a_mapping_without_root_gives_the_same_sets(yaml: Path) -> None:
    yaml.write_text("defaults: {top_p: 0.5}\ndatasets:\n  b: {path: /b.jsonl}\n  a: {path: /a.jsonl, name: renamed}\n")

    config = resolved(eval_config="eval.yaml").config

    assert [(name, dataset.path, dataset.top_p) for name, dataset in config.eval.datasets] == [
        ("b", "/b.jsonl", 0.5),
        ("renamed", "/a.jsonl", 0.5),
    ]


def test_the_file_counts_in_place_of_pairs_on_the_command_line(yaml: Path) -> None:
    both: ResolvedConfig = resolved(eval_config="eval.yaml", eval_prompt_data=["dev", "/dev.jsonl"])

    assert [name for name, _ in both.config.eval.datasets] == ["aime", "gsm8k"]
    assert any("eval_prompt_data" in warning and "no effect" in warning for warning in both.warnings)


def test_pairs_fall_back_on_the_same_settings() -> None:
    config = resolved(eval_prompt_data=["dev", "/dev.jsonl"], n_samples_per_eval_prompt=8, eval_min_new_tokens=2).config

    dev = resolved_dataset(config, "dev")

    assert (dev.n_samples_per_eval_prompt, dev.min_new_tokens, dev.input_key) == (8, 2, "input")


def test_prompts_leave_room_for_a_response_in_the_context() -> None:
    pairs = {"eval_prompt_data": ["dev", "/dev.jsonl"]}

    longest = [
        resolved_dataset(resolved(**pairs, **settings).config, "dev").max_prompt_len
        for settings in ({}, {"rollout_max_context_len": 64}, {"eval_max_context_len": 32}, {"eval_max_prompt_len": 7})
    ]

    assert longest == [None, 63, 31, 7]


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        (
            "datasets: [{name: a, path: /a, temprature: 1}]",
            "data set a: there is no key `temprature`",
            "`temperature`?",
        ),
        ("defaults: {topp: 1}\ndatasets: {a: {path: /a}}", "`defaults`: there is no key `topp`", "`top_p`?"),
        ("defaults: {path: /x}\ndatasets: {a: {path: /a}}", "`defaults`: there is no key `path`", "the keys are"),
        ("evals: {}", "there is no key `evals`", ""),
        ("datasets: [{path: /a}]", "data set 1 has no `name`", "name: NAME"),
        ("datasets: {a: {}}", "data set a has no `path`", "path: FILE"),
        (
            "datasets: {a: {path: /a, min_eval_samples: 0}}",
            "`min_eval_samples` = 0: input should be greater",
            "",
        ),
        ("datasets: {a: {path: /a, top_p: high}}", '`top_p` = "high": input should be a valid number', ""),
        ("datasets: [{name: a, path: /a}, {name: a, path: /b}]", "there are two data sets a", "a name for each"),
        ("datasets: 42", "`datasets` is no list or mapping", "name: NAME"),
        ("datasets: [3]", "data set 1 is no mapping", "path: FILE"),
        ("- a", "is no mapping of names to values", ""),
        ("a: [", "eval.yaml:1 is not YAML", ""),
        ("datasets: {train: {path: /a}}", "has the name train, which is training's", ""),
        ("datasets: {../a: {path: /a}}", "has the name ../a, which is no folder's", ""),
    ],
)
def test_what_is_wrong_is_said_with_file_entry_and_way_out(yaml: Path, text: str, says: str, hint: str) -> None:
    told = refusal(yaml, text)

    assert says in told
    assert hint in told


def test_a_file_that_is_not_there_is_named(yaml: Path) -> None:
    with pytest.raises(MissingInputError, match=r"there is no file .*/other\.yaml"):
        resolved(eval_config="other.yaml")


def test_all_problems_of_a_file_are_reported_at_once(yaml: Path) -> None:
    told = refusal(yaml, "datasets: [{name: a, top_p: 3}, {path: /b}]")

    assert "the config has 3 problems" in told


def test_a_new_file_is_not_hidden_by_an_old_one_that_is_written_out(yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(resolve(None, SMALLEST | {"eval_config": "eval.yaml"}).describe())

    with pytest.raises(UsageError, match=r"eval_config \(--eval-config\) is not read: eval_datasets \(.*old.toml"):
        resolve(tmp_path / "old.toml", ["--eval-config", "eval.yaml"])


def test_custom_config_is_set_on_args_and_says_what_it_overrides(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("tool_limit: 3\nlr: 0.5\nservers: [a, b]\n")

    own = resolved(custom_config_path=str(path))
    args = own.config.as_args()

    assert (args.tool_limit, args.lr, args.servers) == (3, 0.5, ["a", "b"])
    assert own.config.optimizer.lr == 1e-6
    assert "custom_config: plug-ins see args.lr = 0.5, in place of 1e-06" in own.warnings


def test_later_settings_leave_the_digests_of_older_runs_as_they_are() -> None:
    plain = resolved().config

    assert plain.plugins.as_json() == {}
    assert "eval_datasets" not in plain.eval.as_json()
    assert plain.digest(("rollout", "plugins")) == plain.digest(("rollout",))
    assert resolved(log_passrate=True, eval_shards=3).config.digest(("eval",)) == plain.digest(("eval",))


def test_a_rollout_function_changes_the_digest_and_a_log_function_does_not() -> None:
    plain = resolved().config.digest(("plugins",))

    assert resolved(custom_rollout_log_function_path="a.b").config.digest(("plugins",)) == plain
    assert resolved(rollout_function_path="a.b").config.digest(("plugins",)) != plain
