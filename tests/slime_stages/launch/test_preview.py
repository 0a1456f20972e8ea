from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_stages.errors import UsageError
from slime_stages.launch.chain_state import Chain
from slime_stages.launch.disk_need import disk_need, folder_bytes
from slime_stages.launch.preview import Preview, past_manifests, preview, scripts
from slime_stages.run.rundir import RunDir
from tests.slime_stages.cli.small_run import SmallRun, made_up_samples, make_model_folder
from tests.slime_stages.config.settings import resolved

HEADER = """#!/bin/bash
#SBATCH --cpus-per-task=4
{options}
exec python -m stages.{stage} "$@"
"""


@pytest.fixture
def small(tmp_path: Path) -> SmallRun:
    """4 prompts × 2 samples in 2 shards; a model of 1,000 bytes."""
    settings = resolved(
        rollout_batch_size=4, n_samples_per_prompt=2, rollout_shards=2, rollout_max_response_len=100, keep_weights=1
    )
    model = make_model_folder(tmp_path / "model")
    (model / "model.safetensors").write_bytes(bytes(1000))
    (model / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    return SmallRun(run=RunDir(tmp_path / "run"), config=settings.config).start(model)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Rollout: 2 GPUs for an hour; train: 8 GPUs over 2 nodes, for as long as the cluster says; the others none."""
    folder = tmp_path / "sbatch"
    folder.mkdir()
    options = {
        "rollout": "#SBATCH --gpus=2 --time=01:00:00 --partition=gpu",
        "reward": "#SBATCH --time=30 --mem=8G",
        "train": "#SBATCH --nodes=2 --gpus-per-node=4",
        "sync": "#SBATCH --time=30",
    }
    for stage, text in options.items():
        (folder / f"{stage}.sbatch").write_text(HEADER.format(stage=stage, options=text))
    return Chain(target=2, sbatch_folder=str(folder))


def titles(found: Preview) -> list[tuple[str, int, tuple[int | None, ...]]]:
    return [(job.job.stage, job.job.iteration, job.job.shards) for job in found.jobs]


def test_a_preview_has_every_job_and_writes_nothing(small: SmallRun, chain: Chain) -> None:
    before = sorted(small.run.root.rglob("*"))

    found = preview(small.run, range(2), chain)

    assert titles(found) == [
        (stage, iteration, shards)
        for iteration in range(2)
        for stage, shards in (("rollout", (0, 1)), ("reward", (0, 1)), ("train", (None,)), ("sync", (None,)))
    ]
    assert sorted(small.run.root.rglob("*")) == before


def test_what_is_there_is_not_submitted_again(small: SmallRun, chain: Chain) -> None:
    plan = small.plan(0)
    small.rollout(plan, 0)
    small.rollout(plan, 1)
    small.reward(plan, 0)

    assert titles(preview(small.run, range(1), chain)) == [
        ("reward", 0, (1,)),
        ("train", 0, (None,)),
        ("sync", 0, (None,)),
    ]


def test_hours_are_bounded_by_the_headers_and_unknown_where_they_say_nothing(small: SmallRun, chain: Chain) -> None:
    found = preview(small.run, range(1), chain)

    hours = {job.job.stage: (job.most_gpu_hours, job.most_cpu_hours) for job in found.jobs}
    assert hours == {
        "rollout": (4.0, 8.0),  # 2 tasks × 2 GPUs, 4 cores × 1 h
        "reward": (0.0, 4.0),  # 2 tasks × 4 cores × 0.5 h
        "train": (None, None),
        "sync": (0.0, 2.0),
    }
    assert found.total("most_gpu_hours") == (4.0, False)
    assert found.iteration_seconds is None


def test_options_of_the_command_line_count(small: SmallRun, chain: Chain) -> None:
    overridden = Chain(target=1, sbatch_folder=chain.sbatch_folder, overrides={"train.time": "02:00:00"})

    assert preview(small.run, range(1), overridden).total("most_gpu_hours") == (20.0, True)


def test_a_run_with_a_past_says_what_a_task_took(small: SmallRun, chain: Chain) -> None:
    small.complete(0)

    found = preview(small.run, range(1, 2), chain)

    assert found.iteration_seconds is not None
    assert 0 < found.iteration_seconds < 60
    rollout = found.jobs[0]
    assert rollout.task_seconds is not None
    assert rollout.gpu_hours == pytest.approx(2 * 2 * rollout.task_seconds / 3600)
    assert found.disk.is_measured


def test_what_is_stale_is_named_and_with_accept_stale_left_alone(small: SmallRun, chain: Chain) -> None:
    plan = small.complete(0)
    small.rollout(plan, 0, samples=made_up_samples(plan, 0, word="other"), force=True)

    found = preview(small.run, range(1), chain)
    assert found.stale[0] == "reward 0/0 is stale: rollout changed since"
    assert titles(found) == [("reward", 0, (0,)), ("train", 0, (None,))]

    accepting = Chain(target=1, sbatch_folder=chain.sbatch_folder, accept_stale=True)
    assert (preview(small.run, range(1), accepting).stale, titles(preview(small.run, range(1), accepting))) == ((), [])


def test_a_header_that_cannot_be_used_is_refused_with_its_line(small: SmallRun, chain: Chain) -> None:
    path = Path(chain.sbatch_folder) / "train.sbatch"
    path.write_text(path.read_text().replace("--nodes=2", "--output=x"))

    with pytest.raises(UsageError, match=r"train\.sbatch:3: --output"):
        preview(small.run, range(1), chain)


# disk


def test_without_a_past_bytes_follow_from_tokens_and_from_the_model(small: SmallRun) -> None:
    need = disk_need(small.run, small.config, 10, [])

    model = folder_bytes(small.run.weights_path(0))
    assert need.data_per_iteration == round(8 * 100 * 5.3)  # 8 samples of at most 100 tokens
    assert need.weights == model
    assert need.checkpoint == model // 2 * 12  # bfloat16 weights, trained in float32 with Adam
    # 1 kept + 1 being written; 2 checkpoints kept + 1 being written
    assert need.total == 10 * need.data_per_iteration + 2 * model + 3 * need.checkpoint
    assert not need.is_measured


def test_one_iteration_has_one_version_and_one_checkpoint(small: SmallRun) -> None:
    need = disk_need(small.run, small.config, 1, [])

    assert need.weights is not None
    assert need.checkpoint is not None
    assert need.total == need.data_per_iteration + need.weights + need.checkpoint


def test_a_critic_has_a_checkpoint_beside_that_of_the_policy(small: SmallRun) -> None:
    algorithm = small.config.algorithm.model_copy(update={"advantage_estimator": "ppo"})
    with_critic = small.config.model_copy(update={"algorithm": algorithm})

    alone, together = (disk_need(small.run, config, 1, []).checkpoint for config in (small.config, with_critic))

    assert alone is not None
    assert together == 2 * alone


def test_a_model_of_unknown_type_has_no_known_checkpoint(small: SmallRun, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").write_text("{}")

    need = disk_need(small.run, small.config, 1, [])

    assert (need.checkpoint, need.total) == (None, None)


def test_past_iterations_are_the_whole_ones_newest_first(small: SmallRun) -> None:
    small.complete(0)
    small.complete(1)
    small.rollout(small.plan(2), 0)

    assert [manifests[0].iteration for manifests in past_manifests(small.run)] == [1, 0]


# scripts


def test_scripts_are_what_sbatch_gets_with_names_in_place_of_ids(small: SmallRun, chain: Chain) -> None:
    found = preview(small.run, range(1), chain)

    texts = {job.stage: text for job, text in scripts(small.run, [j.job for j in found.jobs], chain, max_array_size=9)}

    assert "#SBATCH --array=0-1%2" in texts["rollout"]
    assert "#SBATCH --partition=gpu" in texts["rollout"]
    assert "#SBATCH --dependency=afterany:ID-OF-ROLLOUT-0" in texts["reward"]
    assert "#SBATCH --dependency" not in texts["rollout"]
    assert not small.run.jobs_path.exists()


def test_an_array_beyond_the_clusters_limit_is_several_jobs(small: SmallRun, chain: Chain) -> None:
    found = preview(small.run, range(1), chain)

    parts = list(scripts(small.run, [found.jobs[0].job], chain, max_array_size=1))

    assert len(parts) == 2
    assert "attempt-000" in parts[0][1]
    assert "attempt-001" in parts[1][1]
