"""Sync stage: turn the checkpoint of an iteration into the next published version of the weights, and check it."""

from __future__ import annotations

from pathlib import Path

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.lineage import command, committed, shard_manifest_path, sync_inputs
from slime_stages.progress import Progress
from slime_stages.run.manifest import Manifest
from slime_stages.run.rundir import RunDir
from slime_stages.stage import Stage, StageCall, open_stage, read_config, read_run_plan
from slime_stages.weights.checkpoints import check_content, iteration_folder, verify_checkpoint
from slime_stages.weights.folders import remove_dead_folders
from slime_stages.weights.outputs import check_outputs
from slime_stages.weights.publish import finish_folder, unpublished_folder
from slime_stages.weights.record import WeightsRecord
from stages.sync.tell import tell_engines

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""Largest gap of a probe's log-probs, by the dtype that is published: rounding of weights shows in them."""


def run(call: StageCall) -> Path:
    """Publish the weights that iteration `call.iteration` trained; returns the path of the manifest."""
    run_dir = RunDir(call.run)
    plan = read_run_plan(run_dir, call.iteration)
    config = read_config(run_dir, plan.config_revision)
    path = shard_manifest_path(run_dir, plan, "sync", None)
    stage = open_stage(call, sync_inputs(run_dir, plan), plan=plan, config=config, path=path, check=check_outputs)
    remove_dead_folders(run_dir.weights_path(0).parent)
    if stage is None:
        return path

    version = plan.trained_version
    trained, target = committed(run_dir, plan, "train", None), run_dir.weights_path(version)
    with unpublished_folder(target) as folder:
        with Progress(call.title, total=3, unit="parts") as progress:
            record, gap = export(stage, version, trained, folder, progress)
        manifest = stage.commit(
            folders={target: folder},
            bytes=sum(file.bytes for file in record.files.values()),
            content=record.digest,
            metrics={"sync/log_probs_gap": gap},
            outputs={"policy_version": version, "weights": target.name},
        )
    tell_engines(run_dir, config, target, version)
    return manifest


def export(
    stage: Stage, version: int, trained: Manifest, folder: Path, progress: Progress
) -> tuple[WeightsRecord, float]:
    """Export and verify, so that no version appears that gives other log-probs than the trained model."""
    from slime_stages.weights.export import export_hf
    from slime_stages.weights.verify import Probe, verify_log_probs

    checkpoint = iteration_folder(stage.run.checkpoints_path, version)
    try:
        verify_checkpoint(checkpoint)
        check_content(checkpoint, trained.content)
    except SlimeStagesError as error:
        error.hint = command(stage.run, "train", stage.plan.iteration, None, force=True)
        raise
    with stage.timed("export"):
        report = export_hf(checkpoint, stage.run.weights_path(0), folder)
    progress.advance()
    with stage.timed("verify"):
        probes = [Probe.from_mapping(values) for values in trained.outputs.get("probes", [])]
        gap = verify_log_probs(folder, probes, tolerance(stage.config, report.dtype))
    progress.advance(log_prob_gap=f"{gap:.1e}")
    with stage.timed("publish"):
        record = finish_folder(folder, version, digests=report.digests)
    progress.advance()
    return record, gap


def tolerance(config: Config, dtype: str) -> float:
    """The trainer's own rounding counts too."""
    return max(TOLERANCE[dtype], TOLERANCE["bfloat16"] if config.train.bf16 else 0.0)
