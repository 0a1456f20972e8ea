"""What scoring a large shard holds in memory at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slime_stages.data.content import content_digest
from slime_stages.data.sample_table import sample_columns
from slime_stages.data.schema import REWARD, ROLLOUT
from slime_stages.data.shards import ROWS_PER_GROUP, ShardWriter, read_shard
from slime_stages.lineage import rollout_inputs, shard_manifest_path
from slime_stages.run.plan import Plan
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.stage import StageCall, open_stage
from tests.slime_stages.cli.small_run import SmallRun, make_model_folder
from tests.slime_stages.config.settings import resolved

PROGRAM = """
import json, sys
from pathlib import Path
from slime_stages.rewards import pool, scoring
from slime_stages.stage import StageCall
from stages.reward.run import run

def megabytes():
    status = Path("/proc/self/status").read_text()  # getrusage tells the peak of the parent, too
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

before = megabytes()
run(StageCall(stage="reward", run=Path(sys.argv[1]), iteration=0, shard=0))
print(json.dumps([before, megabytes()]))
"""


def always_one(args: object, sample: Sample) -> float:
    return float(len(sample.tokens) == 1 + sample.response_length)


def megabytes_for(folder: Path, samples: int, tokens: int, **scorer: str) -> float:
    """By which scoring so many samples of so many tokens makes the stage's process grow, at its peak."""
    settings = {"rollout_batch_size": samples, "n_samples_per_prompt": 1, "reward_workers": 2, **scorer}
    small = SmallRun(run=RunDir(folder / "run"), shards=1, config=resolved(**settings).config)
    small.start(make_model_folder(folder / "model"))
    write_rollout(small, small.plan(0), samples, tokens)
    root = str(small.run.root)
    done = subprocess.run([sys.executable, "-c", PROGRAM, root], capture_output=True, text=True, check=True)
    before, peak = json.loads(done.stdout)
    rewards = read_shard(small.run.shard_path("reward", 0, 0, 1), REWARD)["reward"].to_pylist()
    assert rewards == [1.0] * samples
    return float(peak - before)


def write_rollout(small: SmallRun, plan: Plan, count: int, tokens: int) -> None:
    call = StageCall(stage="rollout", run=small.run.root, iteration=0, shard=0)
    path = shard_manifest_path(small.run, plan, "rollout", 0)
    stage = open_stage(call, rollout_inputs(small.run, plan), plan=plan, config=small.config, path=path)
    assert stage is not None
    name = small.run.shard_path("rollout", 0, 0, 1).name
    temporary = stage.temporary(name)
    with ShardWriter(temporary, ROLLOUT) as writer:
        for start in range(0, count, ROWS_PER_GROUP):
            rows = [sample(row, tokens) for row in range(start, min(count, start + ROWS_PER_GROUP))]
            writer.write(sample_columns(rows, iteration=0, shard=0, split="train", first_row=start))
    stage.commit(data=temporary, name=name, rows=count, content=content_digest(temporary, ROLLOUT))


def sample(row: int, tokens: int) -> Sample:
    ids = list(range(1000, 1000 + tokens))
    return Sample(
        index=row,
        group_index=row,
        tokens=[5, *ids],
        response_length=tokens,
        rollout_log_probs=[-0.5] * tokens,
        loss_mask=[1] * tokens,
        response=f"answer {row}",
        label=f"answer {row}",
        status=Status.COMPLETED,
    )


def test_memory_does_not_grow_with_the_shard_where_a_function_sees_the_tokens(tmp_path: Path) -> None:
    """All of them as lists would take 120 MB more."""
    custom = f"{__name__}.always_one"

    assert megabytes_for(tmp_path, samples=3 * ROWS_PER_GROUP, tokens=1024, custom_rm_path=custom) < 140


@pytest.mark.slow
def test_memory_is_bounded_for_twenty_thousand_samples_of_four_thousand_tokens(tmp_path: Path) -> None:
    """All of their tokens as lists would be 6 GB."""
    custom = f"{__name__}.always_one"

    assert megabytes_for(tmp_path, samples=20_000, tokens=4096, custom_rm_path=custom) < 300
