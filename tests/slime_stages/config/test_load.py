from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.config import ResolvedConfig, resolve
from slime_stages.errors import MissingInputError, UsageError

TOML = """\
[model]
hf_checkpoint = "/model"

[data]
prompt_data = "/prompts.jsonl"

[rollout]
rollout-batch-size = 4
n_samples_per_prompt = 2

[serving.sglang]
mem-fraction-static = 0.7
cuda_graph_bs = [1, 2]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(TOML)
    return Path("config.toml")


def problems(path: Path, text: str, flags: list[str] | None = None) -> str:
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve(path, flags or [])
    return f"{caught.value}\n{caught.value.hint}"


def test_flags_win_over_the_file_and_the_file_over_defaults(path: Path) -> None:
    resolved = resolve(path, ["--n-samples-per-prompt", "8"])

    assert resolved.config.rollout.rollout_batch_size == 4
    assert resolved.config.rollout.n_samples_per_prompt == 8
    assert resolved.config.rollout.rollout_top_k == -1


def test_every_value_knows_where_it_came_from(path: Path) -> None:
    resolved = resolve(path, ["--n-samples-per-prompt=8", "--sglang-log-level", "warning"])

    assert resolved.sources["rollout_batch_size"] == "config.toml:8"
    assert resolved.sources["n_samples_per_prompt"] == "--n-samples-per-prompt"
    assert resolved.sources["rollout_top_k"] == "default"
    assert resolved.sources["eps_clip_high"] == "derived from eps_clip"
    assert resolved.sources["sglang.mem_fraction_static"] == "config.toml:12"
    assert resolved.sources["sglang.log_level"] == "--sglang-log-level"


def test_pass_through_options_of_file_and_flags_are_one_table(path: Path) -> None:
    flags = ["--sglang-mem-fraction-static", "0.8", "--sglang-enable-metrics", "--router-policy", "random"]

    serving = resolve(path, flags).config.serving

    assert serving.sglang == {"mem_fraction_static": 0.8, "cuda_graph_bs": (1, 2), "enable_metrics": True}
    assert serving.router == {"policy": "random"}


def test_relative_paths_are_taken_from_the_current_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")

    flags = ["--hf-checkpoint", "$SCRATCH/model", "--prompt-data", "a.jsonl@[0:8]", "/b.jsonl"]
    config = resolve(path, [*flags, "--eval-prompt-data", "dev", "dev.jsonl"]).config

    assert config.model.hf_checkpoint == "/scratch/me/model"
    assert config.data.prompt_data == (f"{Path.cwd()}/a.jsonl@[0:8]", "/b.jsonl")
    assert [(name, dataset.path) for name, dataset in config.eval.datasets] == [("dev", f"{Path.cwd()}/dev.jsonl")]


def test_flags_may_be_a_mapping_of_typed_values(path: Path) -> None:
    resolved = resolve(path, {"lr": 2e-6, "rollout_stop": ["</s>"], "sglang": {"log_level": "info"}})

    assert resolved.config.optimizer.lr == 2e-6
    assert resolved.config.rollout.rollout_stop == ("</s>",)
    assert resolved.config.serving.sglang["log_level"] == "info"
    assert resolved.sources["lr"] == "--lr"


def test_all_problems_are_reported_at_once(path: Path) -> None:
    toml = TOML.replace("n_samples_per_prompt = 2", 'n_samples_per_promt = 2\nrollout_top_p = "high"')

    text = problems(path, toml, ["--lr", "fast", "--bf-16"])

    assert "the config has 4 problems" in text
    assert "there is no setting n_samples_per_promt in [rollout] (config.toml:9)" in text
    assert "did you mean `n_samples_per_prompt`?" in text
    assert 'rollout_top_p = "high" (config.toml:10) should be a valid number' in text
    assert 'lr = "fast" (--lr) should be a valid number' in text
    assert "there is no flag --bf-16\n    did you mean `--bf16`?" in text


def test_a_text_is_no_number_in_the_file(path: Path) -> None:
    text = problems(path, TOML.replace("rollout-batch-size = 4", 'rollout-batch-size = "4"'))

    assert 'rollout_batch_size = "4" (config.toml:8) should be a valid integer' in text


def test_a_missing_setting_says_how_to_give_it() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(None, ["--prompt-data", "/p.jsonl", "--rollout-batch-size", "4"])

    assert caught.value.message == "hf_checkpoint is missing"
    assert caught.value.hint == "`hf_checkpoint = ...` below [model], or --hf-checkpoint PATH"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("[optimiser]\nlr = 1.0", "there is no section optimiser (config.toml:15)", "did you mean `optimizer`?"),
        ("[train]\nlr = 1.0", "there is no setting lr in [train] (config.toml:16)", "it belongs to [optimizer]"),
        ("[train]\nbf16 = 1", "bf16 = 1 (config.toml:16) should be true or false", "None"),
        ("[train]\nseed = nan", "seed = nan (config.toml:16) should be", "None"),
        ('[algorithm]\nadvantage_estimator = "gpro"', "should be 'grpo', 'gspo', 'cispo', ", "did you mean `gspo`?"),
        ("[algorithm]\nnull_reward = true", "null_reward = true (config.toml:16) should be 'drop' or", "None"),
        ("[data2]\nx = 1", "there is no section data2", "did you mean `data`?"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(path: Path, line: str, message: str, hint: str) -> None:
    text = problems(path, f"{TOML}\n{line}\n")

    assert message in text
    assert text.endswith(hint)


def test_a_setting_before_all_sections_is_sent_to_its_own(path: Path) -> None:
    assert problems(path, "lr = 1.0\n" + TOML).splitlines() == [
        "lr (config.toml:1) stands outside its section",
        "move it below [optimizer]",
    ]


def test_a_syntax_error_is_named_with_its_line(path: Path) -> None:
    text = problems(path, "[train]\nbf16 = True\n")

    assert text.startswith("config.toml is not TOML: invalid value (at line 2, column 8)")


def test_a_file_that_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="there is no config file"):
        resolve(tmp_path / "nope.toml")


@pytest.mark.parametrize("sources", [True, False])
def test_a_described_config_resolves_to_itself(path: Path, sources: bool) -> None:
    flags = ["--rollout-stop", 'a"\\\n', "ü", "--apply-chat-template-kwargs", '{"a-b": [1, true], "c": "x"}']
    first = resolve(path, [*flags, "--rollout-external-engine-addrs", "a:1", "--rollout-max-context-len", "64"])

    path.write_text(first.describe(sources=sources))
    again = resolve(path)

    assert again.config == first.config


def test_explaining_puts_the_source_behind_each_value(path: Path) -> None:
    lines = [line.split() for line in resolve(path).describe(sources=True).splitlines()]

    assert ["rollout_batch_size", "=", "4", "#", "config.toml:8"] in lines
    assert ["#", "eps_clip_high", "=", "0.2", "#", "derived", "from", "eps_clip"] in lines
    assert ["mem_fraction_static", "=", "0.7", "#", "config.toml:12"] in lines


def test_every_shipped_config_resolves() -> None:
    for toml in (Path(__file__).parents[3] / "examples").glob("**/*.toml"):
        assert isinstance(resolve(toml), ResolvedConfig), toml


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("python3", "python3"),
        ("env/bin/python", "{cwd}/env/bin/python"),
        ("apptainer exec --nv image.sif python3", "apptainer exec --nv {cwd}/image.sif python3"),
        (
            "apptainer exec --bind /data:/data docker://sglang python3",
            "apptainer exec --bind /data:/data docker://sglang python3",
        ),
        ("my env/python", "'{cwd}/my env/python'"),
    ],
)
def test_the_interpreter_of_the_engines_may_be_a_command_and_its_paths_are_kept_absolute(
    path: Path, typed: str, kept: str
) -> None:
    Path("image.sif").touch()
    Path("my env").mkdir()
    Path("my env/python").touch()

    config = resolve(path, ["--serving-python", typed]).config

    assert config.serving.serving_python == kept.format(cwd=Path.cwd())
    assert resolve(path, ["--serving-python", config.serving.serving_python]).config == config


@pytest.mark.parametrize(("typed", "said"), [("", "names no program"), ("apptainer 'exec", "No closing quotation")])
def test_a_command_that_is_none_is_refused(path: Path, typed: str, said: str) -> None:
    assert said in problems(path, TOML, ["--serving-python", typed])
