from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.cli.main import main
from slime_stages.cli.sample_text import prompt_text, visible
from slime_stages.run.rundir import RunDir
from tests.fixtures.tiny_model import make_tokenizer
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Iteration 0 is complete and evaluated; iteration 1 has shard 0 without rewards. Do not write to it."""
    folder = tmp_path_factory.mktemp("show")
    small = SmallRun(run=RunDir(folder / "run")).start(make_model_folder(folder / "model"))
    small.complete(0)
    small.evaluate(0, "heldout")
    small.rollout(small.plan(1), 0)
    return small


def show(small: SmallRun, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["show", "--run", str(small.run.root), *words]) == 0
    return capsys.readouterr().out


def error(small: SmallRun, capsys: pytest.CaptureFixture[str], *words: str, code: int = 66) -> tuple[str, str]:
    """Message and hint, the run's folder in them as RUN."""
    capsys.readouterr()
    assert main(["show", "--run", str(small.run.root), *words]) == code
    message, _, hint = capsys.readouterr().err.replace(str(small.run.root), "RUN").partition("\n\nhint: ")
    return message.removeprefix("error: "), hint.rstrip("\n")


def shown(text: str) -> list[str]:
    """The places of the samples shown."""
    return [line.split()[1] for line in text.splitlines() if line.startswith("sample ")]


def test_a_sample_is_shown_with_all_that_was_committed_about_it(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(run_of_two, capsys, "5")

    assert text.splitlines() == [
        "sample 0/1/1  index 5  group 2  prompt prompt-2",
        "status completed, 3 prompt tokens, 3 response tokens, weights 0, seed 7, 1.50 s",
        'reward 1, scored in 0.25 s, parts {"right":1.0}',
        "train used in step 0, 2 tokens with mask 1, advantage +0.5000, log-prob gap 0.001000, entropy 1.5000",
        'label "2"',
        "",
        "prompt",
        "question 2",
        "",
        "response",
        "answer 2.1",
    ]
    assert show(run_of_two, capsys, "0/1/1") == text


def test_without_a_sample_the_first_of_the_newest_iteration_are_shown(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(run_of_two, capsys)

    assert shown(text) == ["1/0/0", "1/0/1", "1/0/2"]
    assert text.count("reward not committed\n") == 3
    assert "train" not in text


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (["--iter", "0", "--shard", "1", "--count", "2"], ["0/1/0", "0/1/1"]),
        (["--iter", "0", "--status", "truncated"], ["0/0/3", "0/1/3"]),
        (["--iter", "0", "--best", "--count", "1"], ["0/0/1"]),
        (["--iter", "0", "--worst", "--count", "1"], ["0/0/0"]),
        (["--iter", "0", "--reward-status", "scored", "--count", "1"], ["0/0/0"]),
        (["--iter", "0", "--status", "scored", "--count", "1"], ["0/0/0"]),
        (["--eval", "heldout"], ["0/0/0", "0/0/1"]),
        (["1", "--eval", "heldout"], ["0/0/1"]),
    ],
)
def test_samples_are_chosen(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str], words: list[str], places: list[str]
) -> None:
    assert shown(show(run_of_two, capsys, *words)) == places


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["99"],
            "there is no sample 99; iterations 0 to 1 of RUN have indices 0 to 15",
            "slime-stages show --run RUN --iter 1",
        ),
        (
            ["13"],
            "shard 1 of iteration 1 has no samples yet",
            "slime-stages rollout --run RUN --iter 1 --shard 1",
        ),
        (
            ["1/0/9"],
            "shard 0 of iteration 1 has rows 0 to 3; there is no row 9",
            "slime-stages show --run RUN 1/0/3",
        ),
        (["0/7/0"], "iteration 0 has shards 0 to 1; there is no shard 7", "--shard 0"),
        (["--iter", "9"], "iteration 9 has no samples; there are 0, 1", "slime-stages show --run RUN --iter 1"),
        (
            ["--eval", "other"],
            "RUN has no evaluation 'other' yet; there are heldout",
            "slime-stages eval --run RUN",
        ),
        (
            ["--iter", "0", "--status", "failed"],
            "none of the 8 samples of iteration 0 is like that; there are 6 completed, 2 truncated; rewards 8 scored",
            "slime-stages status --run RUN --iter 0",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str], words: list[str], message: str, hint: str
) -> None:
    assert error(run_of_two, capsys, *words) == (message, hint)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["first"], "'first' names no sample"),
        (["0/1"], "'0/1' names no sample"),
        (["0/0/0", "--iter", "1"], "SAMPLE 0/0/0 names its iteration"),
        (["--status", "finished"], "--status 'finished' is no status"),
        (["5", "--shard", "0"], "SAMPLE 5 is one sample; "),
    ],
)
def test_words_that_make_no_sense_are_refused(
    run_of_two: SmallRun, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert error(run_of_two, capsys, *words, code=2)[0].startswith(message)


def test_a_run_without_samples_says_how_to_make_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))

    assert error(small, capsys) == ("RUN has no samples yet", "slime-stages iter --run RUN --n 1")


def test_a_reward_without_a_number_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    plan = small.plan(0)
    small.rollout(plan, 0)
    small.reward(plan, 0, rewards=[1.0, 0.5, None, 1.0])

    text = show(small, capsys, "--reward-status", "error")

    assert shown(text) == ["0/0/2"]
    assert "reward none, error in 0.25 s: no number found\n" in text
    assert shown(show(small, capsys, "--worst")) == ["0/0/1", "0/0/0", "0/0/3"]


def test_rewards_and_training_of_an_earlier_rollout_are_not_shown_with_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    plan = small.complete(0)
    small.rollout(plan, 0, samples=made_up_samples(plan, 0, word="other"), force=True)

    text = show(small, capsys, "1")

    root = small.run.root
    assert "other 0.1" in text
    assert "reward not committed\n" in text
    again = f"slime-stages reward --run {root} --iter 0 --shard 0"
    assert f"note: its reward is of an earlier rollout and not shown; {again}\n" in text
    again = f"slime-stages train --run {root} --iter 0"
    assert f"note: training was of an earlier rollout or reward and is not shown; {again}\n" in text


def test_tokens_are_a_line_each_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(model_with_tokenizer(tmp_path / "model"))
    plan = small.plan(0)
    samples = made_up_samples(plan, 0)
    tokenizer = make_tokenizer()
    samples[0].tokens = tokenizer.encode(" answer is\n") + tokenizer.encode(" the\x1b")
    samples[0].response_length, samples[0].loss_mask = 2, [1, 0]
    samples[0].rollout_log_probs = [-0.25, 0.0]
    ids = samples[0].tokens
    small.rollout(plan, 0, samples=samples)

    lines = show(small, capsys, "0", "--tokens").splitlines()

    start = lines.index("   row       id  mask    logprob  text")
    assert lines[start + 1 :] == [
        f'     0  {ids[0]:>7}     -          -  " answer"',
        f'     1  {ids[1]:>7}     -          -  " is"',
        f'     2  {ids[2]:>7}     -          -  "\\n"',
        f'     3  {ids[3]:>7}     1    -0.2500  " the"',
        f'     4  {ids[4]:>7}     0          -  "\\u001b"',
    ]


def test_tokens_are_coloured_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(model_with_tokenizer(tmp_path / "model"))
    plan = small.plan(0)
    samples = made_up_samples(plan, 0)
    samples[0].tokens = make_tokenizer().encode(" is answer the is\n")
    samples[0].response_length, samples[0].loss_mask = 4, [1, 0, 1, 1]
    samples[0].rollout_log_probs = [-0.05, 0.0, -1.0, -5.0]  # probabilities 0.95, 0.37 and 0.007
    small.rollout(plan, 0, samples=samples)
    monkeypatch.setenv("FORCE_COLOR", "1")

    text = show(small, capsys, "0", "--tokens")

    dim, bright, grey, yellow, red, off = "\x1b[2m", "\x1b[1;97m", "\x1b[4;37m", "\x1b[33m", "\x1b[1;31m", "\x1b[0m"
    sample = f"{dim} is{off}{bright} answer{off}{grey} the{off}{yellow} is{off}{red}↵{off}\n"
    assert text.endswith(f"\n\n{sample}\n")
    assert f"{bright}p ≥ 0.9{off}" in text
    assert f"{red}p < 0.01{off}" in text


def test_without_a_tokenizer_tokens_are_shown_by_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SmallRun(run=RunDir(tmp_path / "run")).start(make_model_folder(tmp_path / "model"))
    small.rollout(small.plan(0), 0)
    (small.run.weights_path(0) / "tokenizer.json").unlink()
    capsys.readouterr()

    assert main(["show", "--run", str(small.run.root), "0", "--tokens"]) == 0

    captured = capsys.readouterr()
    assert captured.out.splitlines()[-3:] == [
        '     3       20     1    -0.0500  "<20>"',
        '     4       21     0          -  "<21>"',
        '     5       22     1    -5.0000  "<22>"',
    ]
    assert captured.err.startswith(f"note: {small.run.weights_path(0)} holds no tokenizer that can be loaded: ")
    assert captured.err.endswith("; ids are shown\n")


def test_a_tokenizer_that_is_broken_is_told(run_of_two: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()

    assert main(["show", "--run", str(run_of_two.run.root), "0", "--tokens"]) == 0

    path = run_of_two.run.weights_path(0) / "tokenizer.json"
    assert capsys.readouterr().err == f"note: {path} cannot be read: Model missing. at line 1 column 2; ids are shown\n"


def test_chat_messages_are_shown_below_their_roles() -> None:
    messages = '[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"image"}]}]'

    assert prompt_text({"prompt": None, "messages": messages}) == '[system] Be brief.\n[user] [{"type":"image"}]'


def test_what_would_command_the_terminal_is_spelled_out() -> None:
    assert visible("a\tb\nc\x1b[31m\x9bd\r€") == "a\tb\nc\\x1b[31m\\x9bd\\r€"


def model_with_tokenizer(folder: Path) -> Path:
    make_tokenizer().save_pretrained(make_model_folder(folder))
    return folder
