"""With real engines: a filter, over-sampling, and responses that are cut short and go on under the next weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.states import iteration_states
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample, Status
from slime_stages.serving.engine import Engine
from slime_stages.stage import read_run_plan
from tests.e2e.runs import leftovers, manifests, new_run, run_iteration
from tests.e2e.stage_calls import Forker

LENGTH = 48
MOST_ITERATIONS = 6


def not_the_second(args: Any, samples: list[Sample]) -> bool:
    return samples[0].group_index != 1


def test_responses_go_on_under_the_next_weights_and_their_log_probs_are_those_of_the_weights_that_wrote_them(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, forker: Forker, tmp_path: Path
) -> None:
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=engine,
        rollout_shards=1,
        rollout_max_response_len=LENGTH,
        over_sampling_batch_size=8,
        sglang_server_concurrency=5,
        partial_rollout=True,
        dynamic_sampling_filter_path="tests.e2e.test_carried.not_the_second",
        max_tokens_per_gpu=1024,
    )

    went_on: list[Sample] = []
    for iteration in range(MOST_ITERATIONS):
        run_iteration(run, iteration, forker)
        check_counts(run, iteration)
        went_on, partial = resumed(run, iteration)
        if went_on:
            break

    assert went_on
    for sample in went_on:
        before = partial[sample.index]
        assert sample.tokens[: len(before.tokens)] == before.tokens
        assert sample.metadata["start_rollout_id"] == iteration - 1
        check_log_probs(run, sample, before.response_length, iteration)
    assert all(item.state.is_fresh for item in iteration_states(run, read_run_plan(run, iteration), deep=True))
    assert leftovers(run) == []


def check_counts(run: RunDir, iteration: int) -> None:
    counts = manifests(run)[f"iterations/{iteration:06d}/rollout/shard-00000-of-00001.json"].counts
    assert counts["issued"] + counts["taken"] == counts["kept"] + counts["dropped"] + counts["carried"]
    assert counts["kept"] == 4
    if iteration == 0:
        assert counts["dropped/no_reason"] == 1
    else:
        before = manifests(run)[f"iterations/{iteration - 1:06d}/rollout/shard-00000-of-00001.json"].counts
        assert counts["taken"] == before["carried"] > 0


def resumed(run: RunDir, iteration: int) -> tuple[list[Sample], dict[int | None, Sample]]:
    """Samples that two versions of the weights wrote, and what there was of them before: which ones are in flight when
    a shard has enough groups is a matter of time."""
    if iteration == 0:
        return [], {}
    partial = {s.index: s for s in samples_of(run, iteration - 1, "carry") if s.status == Status.ABORTED}
    made = [*samples_of(run, iteration), *samples_of(run, iteration, "carry")]
    versions = [str(iteration - 1), str(iteration)]
    return [s for s in made if s.index in partial and s.weight_versions == versions], partial


def samples_of(run: RunDir, iteration: int, stage: str = "rollout") -> list[Sample]:
    return read_samples(run.shard_path(stage, iteration, 0, 1))


def check_log_probs(run: RunDir, sample: Sample, old: int, iteration: int) -> None:
    """Each token's is the one that transformers gives it, with the weights of its time."""
    by_version = [transformers_log_probs(run.weights_path(version), sample) for version in (iteration - 1, iteration)]
    expected = np.concatenate([by_version[0][:old], by_version[1][old:]])
    assert sample.rollout_log_probs == pytest.approx(expected.tolist(), abs=1e-3)
    assert 0 < old < sample.response_length <= LENGTH


def transformers_log_probs(folder: Path, sample: Sample) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = sample.response_length
    with torch.no_grad():
        logits = model(torch.tensor([sample.tokens])).logits[0, -count - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(sample.tokens[-count:])[:, None])[:, 0].numpy()
