"""How far engine and trainer are apart where samples come from older weights than training starts from.

The gap to the policy in training also holds what was trained since. So a few samples are scored with the weights that
generated them, before the trainer goes on to the policy that it trains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slime_stages.stage import Stage
from stages.train.batch import IterationBatch
from stages.train.megatron.packing import PackedSample, pack_samples
from stages.train.megatron.step import Trainer

COMPARED_SAMPLES = 16


def sampler_weights(stage: Stage) -> Path | None:
    """The weights that generated the samples; None if training starts from them, or if they are not kept any more."""
    folder = stage.run.weights_path(stage.plan.policy_version)
    return folder if stage.plan.staleness > 0 and folder.exists() else None


def sampler_probs_diff(trainer: Trainer, data: IterationBatch) -> float | None:
    """Mean |p trainer - p engine| over the trained tokens of a few samples; None if no log-probs are known.

    All ranks call it, with the same data.
    """
    chosen = chosen_positions(data.batch.loss_mask_sums)
    batch = data.with_rows(chosen)
    if batch.rollout_log_probs is None:
        return None
    gaps = []
    for position in chosen:
        tokens = np.asarray(batch.tokens[position], np.int64)
        sample = PackedSample(tokens=tokens, response_length=int(batch.response_lengths[position]))
        [log_probs] = trainer.log_probs([pack_samples([sample])])
        engine = np.exp(np.asarray(batch.rollout_log_probs[position], np.float64))
        gap = np.abs(np.exp(log_probs.double().cpu().numpy()) - engine)
        gaps.append(gap[np.asarray(batch.loss_masks[position], bool)])
    return float(np.concatenate(gaps).mean()) if gaps else None


def chosen_positions(trained_tokens: NDArray[np.int64]) -> list[int]:
    """Samples with tokens to train on, spread evenly, so that every shard and thereby every engine has its share."""
    trained = np.flatnonzero(trained_tokens > 0)
    count = min(len(trained), COMPARED_SAMPLES)
    picked: list[int] = trained[np.linspace(0, len(trained) - 1, count).round().astype(int)].tolist() if count else []
    return picked
