"""`reward --as NAME`: samples scored again beside the run's own rewards, by the real pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_stages.cli.main import main
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.errors import DataError, UsageError
from slime_stages.launch.job_logs import Wanted, find_log
from slime_stages.launch.rescore import train_on
from slime_stages.launch.states import iteration_states
from slime_stages.lineage import train_inputs
from slime_stages.named_rewards import freeze_settings, read_settings, with_settings
from slime_stages.run.manifest import read_manifest
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.slurm.jobs import attempts_of
from stages.train.batch import read_iteration
from tests.fakes.commands import FakeCommands
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved
from tests.slime_stages.slurm.reward_run import make_reward_run

HERE = "tests.slime_stages.cli.test_rescore"
ROOT = Path(__file__).parents[3]
SCHEDULER = """SLURM_VERSION = 23.11.4
ClusterName = small
MaxArraySize = 1001
MaxJobCount = 10000
MinJobAge = 300 sec
KillWait = 30 sec
AccountingStorageType = (null)"""


def last_digit(args: object, sample: Sample) -> float:
    """Of the response `answer 3.1`."""
    return float(sample.response[-1])


def token_count(args: object, sample: Sample) -> float:
    return float(len(sample.tokens))


def ten(args: object, sample: Sample) -> float:
    return 10.0


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Iteration 0 is complete, its shards scored 0, 1, 0, 1 and again under the name `ten`. Do not write to it."""
    small = begun(tmp_path_factory.mktemp("rescored"))
    small.complete(0)
    assert call(small, "reward", "--iter", "0", "--as", "ten", "--custom-rm-path", f"{HERE}.ten") == 0
    return small


def begun(folder: Path) -> SmallRun:
    config = resolved(rollout_batch_size=4, n_samples_per_prompt=2, rm_type="math", reward_workers=1).config
    return SmallRun(run=RunDir(folder / "run"), config=config).start(make_model_folder(folder / "model"))


def call(small: SmallRun, *words: str) -> int:
    return main([words[0], "--run", str(small.run.root), *words[1:]])


def refused(small: SmallRun, capsys: pytest.CaptureFixture[str], code: int, *words: str) -> tuple[str, str]:
    """Message and hint, the run's folder in them as RUN."""
    capsys.readouterr()
    assert call(small, *words) == code
    message, _, hint = capsys.readouterr().err.replace(str(small.run.root), "RUN").partition("\n\nhint: ")
    return message.removeprefix("error: "), hint.rstrip("\n")


def rewards(run: RunDir, stage: str, shard: int) -> list[float | None]:
    return list(read_shard(run.shard_path(stage, 0, shard, 2), REWARD)["reward"].to_pylist())


def kinds(small: SmallRun, plan: Plan) -> list[str]:
    return [item.state.kind for item in iteration_states(small.run, plan)]


def test_samples_scored_under_another_name_leave_the_run_as_it_was(scored: SmallRun) -> None:
    plan = scored.plan(0)

    assert [rewards(scored.run, "reward-ten", shard) for shard in (0, 1)] == [[10.0] * 4] * 2
    assert [rewards(scored.run, "reward", shard) for shard in (0, 1)] == [[0.0, 1.0, 0.0, 1.0]] * 2
    assert kinds(scored, plan) == ["fresh"] * 6
    assert not scored.run.metrics_path("reward").exists()
    manifest = read_manifest(scored.run.manifest_path("reward-ten", 0, 1, 2))
    assert (manifest.kind, manifest.rows, manifest.metrics) == ("reward-ten", 4, {"rollout/raw_reward": 10.0})


def test_what_is_scored_under_a_name_is_not_scored_again(scored: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()

    assert call(scored, "reward", "--as", "ten", "--shard", "1") == 0

    said = capsys.readouterr()
    assert said.out == f"{scored.run.manifest_path('reward-ten', 0, 1, 2)}\n"
    assert said.err == "reward-ten 0/1: already committed\n"


def test_a_name_keeps_its_settings_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = begun(tmp_path)
    small.rollout(small.plan(0), 0)
    once = ("reward", "--iter", "0", "--shard", "0", "--as", "digit")
    assert call(small, *once, "--custom-rm-path", f"{HERE}.ten") == 0

    message, hint = refused(small, capsys, 2, *once, "--custom-rm-path", f"{HERE}.last_digit")

    assert message == (
        f"reward 'digit' scores with custom_rm_path = {HERE}.ten, not with custom_rm_path = {HERE}.last_digit"
    )
    assert hint == "choose another name, or add --force: all that has this one is then scored again"
    assert call(small, *once, "--custom-rm-path", f"{HERE}.last_digit", "--force") == 0
    assert rewards(small.run, "reward-digit", 0) == [0.0, 1.0, 0.0, 1.0]
    assert len(list(small.run.stage_path("reward-digit", 0).glob("superseded/*/*.parquet"))) == 1


def test_settings_that_no_reward_depends_on_may_change_under_a_name(tmp_path: Path) -> None:
    small = begun(tmp_path)
    freeze_settings(small.run, "strict", {"rm_type": "f1", "reward_timeout": 5.0}, force=False)

    freeze_settings(small.run, "strict", {"reward_shard_timeout": 60.0}, force=False)
    freeze_settings(small.run, "strict", {}, force=False)

    assert read_settings(small.run, "strict") == {"rm_type": "f1", "reward_timeout": 5.0, "reward_shard_timeout": 60.0}
    with pytest.raises(UsageError, match="not with reward_timeout = 9"):
        freeze_settings(small.run, "strict", {"reward_timeout": 9.0}, force=False)


def test_another_scorer_leaves_none_of_the_runs_behind() -> None:
    config = resolved(custom_rm_path=f"{HERE}.ten", reward_key="score", group_rm=True, reward_timeout=5.0).config

    reward = with_settings(config, {"rm_type": "f1"}).reward

    assert (reward.rm_type, reward.custom_rm_path, reward.reward_key, reward.group_rm) == ("f1", None, None, False)
    assert reward.reward_timeout == 5.0


def test_a_reward_that_the_generate_function_filled_in_is_scored_again_under_another_name(tmp_path: Path) -> None:
    small = begun(tmp_path)
    plan = small.plan(0)
    samples = made_up_samples(plan, 0)
    samples[0].reward = 7.0
    small.rollout(plan, 0, samples=samples)

    assert call(small, "reward", "--as", "digit", "--shard", "0", "--custom-rm-path", f"{HERE}.last_digit") == 0

    assert rewards(small.run, "reward-digit", 0) == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (("--as", "a/b", "--rm-type", "math"), 2, "'a/b' cannot be the name of a reward", "letters, digits,"),
        (("--as", "own", "--rm-type", "math"), 2, "'own' cannot be the name of a reward", "letters, digits,"),
        (("--as", "tne"), 66, "RUN has no reward 'tne' yet; there are ten", "say what scores: slime-stages reward"),
        (("--as", "x", "--lr", "1e-6"), 2, "lr = 1e-06 (--lr) belongs to [optimizer]", "leave it out"),
        (("--as", "x", "--rm-type", "remote_rm"), 2, "needs the address of a reward server", "--rm-url URL"),
        (("--as", "x", "--custom-rm-path", f"{HERE}.nine"), 2, "custom_rm_path: ", ""),
        (("--rm-type", "f1"), 2, "--rm-type is for another reward than the run's own", "add --as NAME"),
        (("--as", "ten", "--iter", "3"), 66, "iteration 3 has no samples; there are 0", "slime-stages show"),
    ],
)
def test_what_cannot_score_is_refused_before_anything_is_written(
    scored: SmallRun, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    said, advice = refused(scored, capsys, code, "reward", *words)

    assert message in said
    assert advice.startswith(hint)
    assert not scored.run.reward_settings_path("x").exists()


def test_a_function_of_one_sample_sees_its_tokens_beside_types_that_do_without(tmp_path: Path) -> None:
    small = begun(tmp_path)
    plan = small.plan(0)
    samples = made_up_samples(plan, 0)
    samples[2].custom_rm_path = f"{HERE}.token_count"
    small.rollout(plan, 0, samples=samples)

    assert call(small, "reward", "--as", "words", "--shard", "0", "--rm-type", "f1") == 0

    assert rewards(small.run, "reward-words", 0) == [0.0, 0.0, 6.0, 0.0]


def test_a_shard_that_is_not_scored_in_time_publishes_nothing_and_is_to_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = begun(tmp_path)
    small.rollout(small.plan(0), 0)
    deadlines = ("--reward-timeout", "0.05", "--reward-shard-timeout", "0.1")

    message, hint = refused(small, capsys, 75, "reward", "--shard", "0", "--as", "late", "--rm-type", "f1", *deadlines)

    assert message == "4 samples were not scored within 0.1 s: 0, 1, 2, 3"
    assert "--reward-shard-timeout" in hint
    assert list(small.run.stage_path("reward-late", 0).glob("shard-*")) == []


def test_show_tells_how_the_rewards_differ(scored: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()

    assert call(scored, "show", "--iter", "0", "--count", "1") == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].split() == [
        "reward",
        "samples",
        "none",
        "mean",
        "own",
        "mean",
        "difference",
        "same",
        "scored",
        "with",
    ]
    assert lines[1].split()[:7] == ["ten", "8", "0", "10", "0.5", "+9.5", "0.0%"]
    assert lines[5].startswith("reward 0, scored in 0.25 s")
    assert lines[6].startswith("reward ten 10 (+10), scored in ")


def test_training_reads_the_reward_that_was_chosen_and_is_stale_by_the_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime_stages.launch.start_run.mend_run", lambda run: None)  # it was begun without prompts
    small = begun(tmp_path)
    plan = small.complete(0)
    own = train_inputs(small.run, plan)
    freeze_settings(small.run, "ten", {"rm_type": "f1"}, force=False)
    small.reward(plan, 0, stage_name="reward-ten")
    message, hint = refused(small, capsys, 66, "train", "--iter", "0", "--reward", "ten")
    assert message.startswith("there is no manifest")
    assert hint == "slime-stages reward --run RUN --iter 0 --shard 1 --as ten"
    small.reward(plan, 1, stage_name="reward-ten", rewards=[2.0, 3.0, 4.0, 5.0])

    train_on(small.run, 0, "ten")

    assert read_iteration(small.run, plan, small.config).raw_rewards.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    chosen = train_inputs(small.run, plan)
    assert sorted(chosen) == ["policy", "reward-ten/00000", "reward-ten/00001", "rollout/00000", "rollout/00001"]
    assert kinds(small, plan) == ["fresh"] * 4 + ["stale", "fresh"]
    train_on(small.run, 0, "own")
    assert train_inputs(small.run, plan) == own
    assert kinds(small, plan) == ["fresh"] * 6


def test_a_chosen_reward_of_an_earlier_rollout_is_not_trained_on(tmp_path: Path) -> None:
    small = begun(tmp_path)
    plan = small.complete(0)
    freeze_settings(small.run, "ten", {"rm_type": "f1"}, force=False)
    for shard in range(2):
        small.reward(plan, shard, stage_name="reward-ten")
    train_on(small.run, 0, "ten")
    small.rollout(plan, 1, samples=made_up_samples(plan, 1, word="other"), force=True)

    with pytest.raises(DataError, match="reward-ten 0/1 is of an earlier rollout") as caught:
        train_inputs(small.run, plan)

    assert str(caught.value.hint).endswith("reward --run " + str(small.run.root) + " --iter 0 --shard 1 --as ten")


def test_jobs_score_under_the_name(
    tmp_path: Path, slurm: FakeCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))  # what its controller says is kept
    run = make_reward_run(tmp_path)
    slurm.answer("sbatch", "7")
    slurm.answer("scontrol", SCHEDULER)
    scorer = ["--as", "ten", "--custom-rm-path", f"{HERE}.ten"]
    words = ["--iter", "0", *scorer, "--submit", "--sbatch", str(ROOT / "sbatch")]

    assert main(["reward", "--run", str(run.root), *words]) == 0

    [attempt] = attempts_of(run, "reward-ten", 0)
    assert (capsys.readouterr().out, attempt.job_id, attempt.shards) == ("7\n", "7", (0, 1))
    assert (
        f"-m stages.reward --run {run.root} --iter 0 --as ten --shard 1" in (attempt.folder / "command.sh").read_text()
    )
    assert find_log(run, Wanted(stage="reward-ten")).title == "reward-ten 0/0, attempt 0, job 7_0"
    job = {"PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "slime_stages.slurm.inside", str(attempt.folder)],
        env={**os.environ, **job},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{run.manifest_path('reward-ten', 0, 1, 2)}\n"
    assert rewards(run, "reward-ten", 1) == [10.0] * 4
