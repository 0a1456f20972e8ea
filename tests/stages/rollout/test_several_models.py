"""A rollout job that serves two models for real: a generate function asks the one that is trained, then the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_stages.compat.http import post
from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.sample import Sample, Status
from slime_stages.serving.fleet import OWN_WEIGHTS
from slime_stages.serving.models import get_model_url
from slime_stages.stage import StageCall
from stages.rollout.run import run as run_rollout
from tests.e2e.runs import new_run
from tests.e2e.test_carried import transformers_log_probs
from tests.fixtures.tiny_model import make_tiny_model

MODELS = """
sglang:
  - {{name: actor, server_groups: [{{worker_type: regular, num_gpus: 1}}]}}
  - {{name: judge, model_path: {judge}, server_groups: [{{worker_type: regular, num_gpus: 1}}]}}
"""


async def answer_and_judge(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """The judge says how likely it finds the answer."""
    asked = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
    told = (await post(get_model_url(args, "actor"), asked))["meta_info"]
    pairs = told["output_token_logprobs"]
    tokens, log_probs = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
    sample.append_response_tokens(args, tokens=tokens, log_probs=log_probs, meta_info=told, text="")
    asked = {"input_ids": sample.tokens, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    judged = (await post(get_model_url(args, "judge"), {**asked, "logprob_start_len": 0}))["meta_info"]
    likely = [pair[0] for pair in judged["input_token_logprobs"][-len(tokens) :]]
    sample.metadata = {**sample.metadata, "judge": likely, "judge_version": judged["weight_version"]}
    return sample


@pytest.mark.slow
def test_each_model_answers_with_weights_of_its_own(tiny_model: Path, tiny_prompts: Path, tmp_path: Path) -> None:
    judge = make_tiny_model(tmp_path / "judge", seed=1)
    (tmp_path / "models.yaml").write_text(MODELS.format(judge=judge))
    run = new_run(
        tmp_path / "run",
        tiny_model,
        tiny_prompts,
        engine=None,
        rollout_shards=1,
        sglang_config=str(tmp_path / "models.yaml"),
        custom_generate_function_path=f"{__name__}.answer_and_judge",
    )
    ensure_plan(run, 0)

    path = run_rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))

    samples = read_samples(path.with_suffix(".parquet"))
    assert [Status(sample.status) in (Status.COMPLETED, Status.TRUNCATED) for sample in samples] == [True] * 8
    assert {(*sample.weight_versions, sample.metadata["judge_version"]) for sample in samples} == {("0", OWN_WEIGHTS)}
    for sample in samples[:2]:
        for folder, found in ((tiny_model, sample.rollout_log_probs), (judge, sample.metadata["judge"])):
            assert found == pytest.approx(transformers_log_probs(folder, sample).tolist(), abs=1e-3)
