"""`reward --as NAME --submit`: an old iteration is scored again by jobs of a real SLURM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_stages.cli.main import main
from slime_stages.data.schema import REWARD
from slime_stages.data.shards import read_shard
from slime_stages.slurm.jobs import attempts_of, read_end
from tests.slime_stages.slurm.reward_run import make_reward_run
from tests.slurm.cluster import Cluster
from tests.slurm.test_submit_real import ended

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
HEADER = f"""#!/bin/bash
#SBATCH --cpus-per-task=1 --mem=1000M --time=10
exec {sys.executable} -m stages.reward "$@"
"""


def test_jobs_score_an_iteration_under_another_name_and_leave_its_own_rewards_alone(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = make_reward_run(tmp_path)
    Path("ten_rewards.py").write_text("def ten(args, sample):\n    return 10.0\n")
    Path("sbatch").mkdir()
    Path("sbatch/reward.sbatch").write_text(HEADER)
    words = ["--iter", "0", "--as", "ten", "--custom-rm-path", "ten_rewards.ten", "--submit", "--sbatch", "sbatch"]

    assert main(["reward", "--run", str(run.root), *words]) == 0

    [attempt] = attempts_of(run, "reward-ten", 0)
    assert capsys.readouterr().out == f"{attempt.job_id}\n"
    assert ended(slurm, attempt) == ["COMPLETED 0:0"] * 2
    for shard in (0, 1):
        end = read_end(attempt, shard)
        assert end is not None
        assert end.exit_code == 0
        assert attempt.log_paths(shard)[0].read_text() == f"{run.manifest_path('reward-ten', 0, shard, 2)}\n"
        scored = read_shard(run.shard_path("reward-ten", 0, shard, 2), REWARD)
        assert scored["reward"].to_pylist() == [10.0] * 4
    assert not run.stage_path("reward", 0).exists()
