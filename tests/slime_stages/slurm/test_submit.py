"""What sbatch is given, and what becomes of its answers, given by scripts in its place. The real one: tests/slurm."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime_stages.errors import RetryableError, UsageError
from slime_stages.run.rundir import RunDir
from slime_stages.slurm import submit
from slime_stages.slurm.commands import SchedulerMissing
from slime_stages.slurm.header import Header, read_header, with_overrides
from slime_stages.slurm.jobs import Attempt, claim_attempt, read_attempt
from slime_stages.slurm.names import comment_of, job_name
from slime_stages.slurm.script import script_text
from slime_stages.slurm.submission import Submission
from slime_stages.slurm.submit import find_submitted, split_shards, submit_attempt

HEADER = f"""#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --cpus-per-task=8
export MODE=set-up
exec {sys.executable} -m stages.rollout "$@"
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "my run")
    run.create()
    return run


@pytest.fixture
def header(tmp_path: Path) -> Header:
    (tmp_path / "rollout.sbatch").write_text(HEADER)
    return read_header(tmp_path / "rollout.sbatch", "rollout")


def claimed(run: RunDir, *shards: int | None, after: int = 0, stage: str = "rollout") -> Attempt:
    attempt = claim_attempt(run, stage, 12, shards=shards or (None,), after=after)
    assert attempt is not None
    return attempt


def submitted(run: RunDir, attempt: Attempt, header: Header, **options: Any) -> Attempt:
    return submit_attempt(Submission(run=run, attempt=attempt, header=header, **options))


def lines(text: str) -> list[str]:
    return text.splitlines()


def command(folder: Path, name: str, script: str) -> None:
    """A command of SLURM that does as the shell script says, and notes its calls."""
    path = folder / name
    path.write_text(f'#!/bin/bash\necho "{name} $@" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(submit, "PAUSES", (0.0, 0.0, 0.0))
    command(folder, "sbatch", "echo '4711;cluster'")
    command(folder, "squeue", "")
    return folder


def test_the_script_has_the_headers_options_and_ours(run: RunDir, header: Header) -> None:
    attempt = claimed(run, 0, 1, 2, 5)

    options: dict[str, Any] = {"dependencies": ["7", "9"], "exclude": ["n3"], "array_parallelism": 2}
    text = lines(script_text(Submission(run=run, attempt=attempt, header=header, **options)))

    for line in (
        "#SBATCH --array=0-3%2",
        "#SBATCH --partition=gpu",
        "#SBATCH --cpus-per-task=8",
        f"#SBATCH --chdir={Path.cwd()}",
        f"#SBATCH --comment='slime-stages {run.run_id()}: rollout 12, shards 0-2, 5 (attempt 0)'",
        "#SBATCH --dependency=afterany:7:9",
        "#SBATCH --exclude=n3",
        "#SBATCH --kill-on-invalid-dep=yes",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=USR2@120",
        f"#SBATCH --output='{attempt.folder}/%A_%a_0_log.out'",
        "export MODE=set-up",
        'export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"',
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
    ):
        assert line in text
    srun = next(line for line in text if line.startswith("srun "))
    assert "--kill-on-bad-exit=1" in srun
    assert srun.endswith(f"{sys.executable} -u -m slime_stages.slurm.inside '{attempt.folder}'")
    assert not [line for line in text if any(word in line for word in ("--wckey", "--time", "--nodes", "submitit."))]


def test_one_shard_is_a_plain_job_and_no_requeue_is_respected(run: RunDir, header: Header) -> None:
    plain = with_overrides(header, {"no-requeue": True, "comment": "mine", "exclude": "n1"})

    attempt = claimed(run, 3)
    text = lines(script_text(Submission(run=run, attempt=attempt, header=plain, exclude=["n2"], signal_seconds=300)))

    assert not [line for line in text if "--array" in line or line == "#SBATCH --requeue"]
    assert "#SBATCH --no-requeue" in text
    assert "#SBATCH --exclude=n1,n2" in text
    assert "#SBATCH --signal=USR2@300" in text
    assert next(line for line in text if "--comment" in line).endswith("rollout 12, shard 3 (attempt 0); mine'")


def test_jobs_of_a_run_share_a_name_that_no_other_run_has(run: RunDir) -> None:
    assert job_name(run).startswith("my-run-")
    assert job_name(run) == run.run_id().replace(" ", "-")


def test_an_attempt_is_submitted_and_can_be_read_from_its_folder(run: RunDir, header: Header, commands: Path) -> None:
    attempt = submitted(run, claimed(run, 4, 5), header, dependencies=["7"])

    assert (attempt.job_id, attempt.is_array, attempt.dependencies) == ("4711", True, ("7",))
    assert read_attempt(attempt.folder) == attempt
    assert sorted(path.name for path in attempt.folder.iterdir()) == ["command.sh", "job.json", "script.sbatch"]
    assert (commands / "calls").read_text() == f"sbatch --parsable {attempt.folder}/script.sbatch\n"


def header_that_runs(program: str, folder: Path) -> Header:
    """One whose Python is this program of bash."""
    (folder / "my-python").write_text(f"#!/bin/bash\n{program}\n")
    (folder / "my-python").chmod(0o755)
    (folder / "rollout.sbatch").write_text(HEADER.replace(sys.executable, "./my-python"))
    return read_header(folder / "rollout.sbatch", "rollout")


def test_command_sh_makes_the_same_calls_by_hand(run: RunDir, commands: Path, tmp_path: Path) -> None:
    header = header_that_runs('echo "$PWD $MODE $HF_HUB_OFFLINE: $*"', tmp_path)
    attempt = submitted(run, claimed(run, 4, 5), header, folder=tmp_path)

    told = subprocess.run([attempt.folder / "command.sh", "--force"], capture_output=True, text=True, check=True)

    assert told.stdout == "".join(
        f"{tmp_path} set-up 1: -m stages.rollout --run {run.root} --iter 12 --shard {shard} --force\n"
        for shard in (4, 5)
    )


def test_command_sh_of_a_stream_makes_its_shards_side_by_side_and_goes_on_as_far_as_the_job(
    run: RunDir, commands: Path, tmp_path: Path
) -> None:
    other_begins = "touch shard$8; until [ -e shard4 -a -e shard5 ]; do sleep 0.02; done"
    header = header_that_runs(f'{other_begins}; echo "$*"; [ $8 = 4 ] || exit 75', tmp_path)
    attempt = submitted(run, replace(claimed(run, 4, 5), until=20), header, folder=tmp_path)

    told = subprocess.run([attempt.folder / "command.sh"], capture_output=True, text=True, check=False, timeout=20)

    words = f"-m stages.rollout --run {run.root} --iter 12 --shard"
    assert sorted(told.stdout.splitlines()) == [f"{words} {shard} --until 20" for shard in (4, 5)]
    assert told.returncode == 75


def test_a_refusal_names_the_line_and_leaves_nothing_behind(run: RunDir, header: Header, commands: Path) -> None:
    command(commands, "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    attempt = claimed(run, 0, 1)

    with pytest.raises(UsageError, match=r"rollout\.sbatch:2: sbatch refuses rollout's job: invalid partition") as told:
        submitted(run, attempt, header)

    assert "--slurm-rollout-OPTION" in str(told.value.hint)
    assert list(attempt.folder.parent.iterdir()) == []
    assert (commands / "calls").read_text().count("sbatch --parsable") == 1


def test_a_full_queue_can_be_tried_again(run: RunDir, header: Header, commands: Path) -> None:
    command(commands, "sbatch", "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1")
    attempt = claimed(run, 0)

    with pytest.raises(RetryableError, match="takes no more jobs"):
        submitted(run, attempt, header)

    assert not attempt.folder.exists()


def test_a_job_whose_answer_was_lost_is_found_and_not_submitted_twice(
    run: RunDir, header: Header, commands: Path
) -> None:
    attempt = claimed(run, 0, after=0)
    command(commands, "sbatch", "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1")
    command(commands, "squeue", f"echo '12|somebody else'; echo '4712|{comment_of(run, attempt)}; mine'")

    assert submitted(run, attempt, header).job_id == "4712"
    assert (commands / "calls").read_text().count("sbatch --parsable") == 1


def test_a_second_job_that_appears_late_is_cancelled(run: RunDir, header: Header, commands: Path) -> None:
    attempt = claimed(run, 0)
    lost = f"touch {commands}/lost; echo 'sbatch: error: Socket timed out' >&2; exit 1"
    command(commands, "sbatch", f"[ -e {commands}/lost ] && touch {commands}/both && echo 4715 && exit; {lost}")
    both = "\n".join(f"{job}|{comment_of(run, attempt)}" for job in (4714, 4715))
    command(commands, "squeue", f"[ -e {commands}/both ] && echo '{both}'; true")
    command(commands, "scancel", "")

    assert submitted(run, attempt, header).job_id == "4715"
    assert (commands / "calls").read_text().endswith("scancel 4714\n")


def test_a_controller_that_is_away_is_asked_again(run: RunDir, header: Header, commands: Path) -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    command(
        commands,
        "sbatch",
        f"[ -e {commands}/back ] && echo 4713 && exit; touch {commands}/back; echo '{away}' >&2; exit 1",
    )

    assert submitted(run, claimed(run, 0), header).job_id == "4713"


def test_where_it_stays_away_the_claim_stays_too(run: RunDir, header: Header, commands: Path) -> None:
    command(commands, "sbatch", "echo 'sbatch: error: Connection refused' >&2; exit 1")
    attempt = claimed(run, 0)

    with pytest.raises(RetryableError, match="does not answer sbatch: Connection refused"):
        submitted(run, attempt, header)

    assert read_attempt(attempt.folder).job_id is None
    assert find_submitted(run, attempt) is None


def test_without_slurm_that_is_what_is_said(
    run: RunDir, header: Header, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SchedulerMissing, match="there is no `sbatch`"):
        submitted(run, claimed(run, 0), header)


def test_sbatch_gets_none_of_an_outer_jobs_variables(
    run: RunDir, header: Header, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NTASKS", "SLURM_CPU_BIND", "SBATCH_PARTITION", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "4")
    command(commands, "sbatch", f"env > {commands}/env; echo 1")

    submitted(run, claimed(run, 0), header)

    names = {line.split("=")[0] for line in (commands / "env").read_text().splitlines()}
    assert not names & {"SLURM_NTASKS", "SLURM_CPU_BIND", "SBATCH_PARTITION", "SLURM_JOB_ID"}


@pytest.mark.parametrize("line", ["source nowhere/activate", "false", "no-such-module load cuda", "exit 0"])
def test_a_set_up_line_that_fails_ends_the_job_and_says_which(run: RunDir, tmp_path: Path, line: str) -> None:
    (tmp_path / "rollout.sbatch").write_text(HEADER.replace("export MODE=set-up", f"{line}\necho on"))
    bad = read_header(tmp_path / "rollout.sbatch", "rollout")
    submission = Submission(run=run, attempt=claimed(run, 0), header=bad)
    (tmp_path / "script").write_text(script_text(submission))

    told = subprocess.run(["bash", tmp_path / "script"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert told.returncode == 1
    assert told.stdout == ""
    assert f"the set-up of rollout failed, see {tmp_path}/rollout.sbatch: {line}\n" in told.stderr


def test_shards_are_split_where_an_array_ends() -> None:
    assert split_shards(range(5), 2) == [(0, 1), (2, 3), (4,)]
    assert split_shards((None,), 1001) == [(None,)]
    assert split_shards((7, 8), 0) == [(7,), (8,)]


def test_a_run_whose_path_slurm_would_take_for_a_pattern_is_refused(tmp_path: Path, header: Header) -> None:
    run = RunDir(tmp_path / "100%j")
    run.create()

    with pytest.raises(UsageError, match="SLURM cannot write logs into"):
        submitted(run, claimed(run, 0), header)
    assert not list((run.root / "jobs").rglob("script.sbatch"))
