"""How many bytes iterations will take on disk, by those that are there, or by the size of the model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_stages.config import Config
from slime_stages.errors import SlimeStagesError
from slime_stages.run.manifest import Manifest
from slime_stages.run.rundir import RunDir
from slime_stages.weights.checkpoints import complete_iterations, critic_checkpoints, iteration_folder
from slime_stages.weights.publish import published_versions

BYTES_PER_TOKEN = 5.3
"""Of a shard on disk: token, mask, log-prob and texts, compressed."""
ADAM_BYTES_PER_PARAMETER = 12
"""Weight and two running means, in float32."""
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """Bytes. What could not be found out is None."""

    data_per_iteration: int
    """Shards, rewards and samples; kept for good."""
    weights: int | None
    """One published version."""
    checkpoint: int | None
    """One checkpoint with the optimizer's state, and that of a critic beside it."""
    total: int | None
    """Most that the iterations add to what the run has now."""
    free: int
    is_measured: bool
    """Data by what this run has written; otherwise by the most tokens that it can write."""


def disk_need(run: RunDir, config: Config, iterations: int, past: Sequence[Sequence[Manifest]]) -> DiskNeed:
    """`past` are the manifests of recent iterations that are whole."""
    sizes = [sum(manifest.bytes for manifest in manifests) for manifests in past]
    data = round(sum(sizes) / len(sizes)) if sizes else round(most_tokens(config) * BYTES_PER_TOKEN)
    weights, checkpoint = weights_bytes(run), checkpoint_bytes(run, config)
    total = None
    if weights is not None and checkpoint is not None:
        total = iterations * data + _new_copies(run, config, iterations, weights, checkpoint)
    return DiskNeed(
        data_per_iteration=data,
        weights=weights,
        checkpoint=checkpoint,
        total=total,
        free=shutil.disk_usage(run.root).free,
        is_measured=bool(sizes),
    )


def most_tokens(config: Config) -> int:
    """Tokens of an iteration whose samples are all as long as they may be; prompts as far as they are bounded."""
    rollout = config.rollout
    longest = rollout.rollout_max_response_len + (config.data.rollout_max_prompt_len or 0)
    return config.samples_per_iteration * min(longest, rollout.rollout_max_context_len or longest)


def weights_bytes(run: RunDir) -> int | None:
    """Of the newest version that is not links, or of the model that the run began with."""
    versions = published_versions(run.weights_path(0).parent)
    return folder_bytes(run.weights_path(versions[-1])) if versions else None


def checkpoint_bytes(run: RunDir, config: Config) -> int | None:
    """Of the newest one; without one, by the parameters of the model. A critic's is counted in, or as the policy's."""
    folder = run.checkpoints_path
    policy = _newest_bytes(folder) or _bytes_by_parameters(run, config)
    if policy is None or not config.algorithm.uses_critic:
        return policy
    return policy + (_newest_bytes(critic_checkpoints(folder)) or policy)


def _newest_bytes(checkpoints: Path) -> int | None:
    complete = complete_iterations(checkpoints)
    return folder_bytes(iteration_folder(checkpoints, complete[-1])) if complete else None


def _bytes_by_parameters(run: RunDir, config: Config) -> int | None:
    weights, dtype = weights_bytes(run), _dtype_bytes(run)
    if weights is None or dtype is None:
        return None
    return weights // dtype * (ADAM_BYTES_PER_PARAMETER + (2 if config.train.bf16 else 0))


def folder_bytes(folder: Path) -> int:
    """Links count as what they lead to."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _new_copies(run: RunDir, config: Config, iterations: int, weights: int, checkpoint: int) -> int:
    """Bytes of the versions that will be there at once and are not yet: the kept ones, the one being written, and
    those kept for good."""
    kept = config.checkpoint
    for_good = iterations // kept.save_interval if kept.save_interval else 0
    have_weights = len([version for version in published_versions(run.weights_path(0).parent) if version > 0])
    have_checkpoints = len(complete_iterations(run.checkpoints_path))
    more_weights = min(iterations, max(0, kept.keep_weights + 1 - have_weights) + for_good)
    more_checkpoints = min(iterations, max(0, kept.keep_checkpoints + 1 - have_checkpoints) + for_good)
    return more_weights * weights + more_checkpoints * checkpoint


def _dtype_bytes(run: RunDir) -> int | None:
    with suppress(OSError, orjson.JSONDecodeError, AttributeError, SlimeStagesError):
        values = orjson.loads((run.weights_path(0) / "config.json").read_bytes())
        return DTYPE_BYTES.get(str(values.get("torch_dtype") or values.get("dtype")).removeprefix("torch."))
    return None
