"""Two sets from a YAML file, each asked and scored in its own way by a real engine and the real reward pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime_stages.cli.main import main
from slime_stages.data.sample_table import read_samples
from slime_stages.sample import Sample, Status
from slime_stages.serving.engine import Engine
from tests.e2e.runs import new_run

YAML = """\
defaults: {{max_response_len: 4}}
datasets:
  greedy:
    path: "{prompts}@[0:2]"
    temperature: 0
    n_samples_per_eval_prompt: 2
    metadata_overrides: {{level: easy}}
    custom_rm_path: tests.e2e.test_evaluation.by_level
  silent:
    path: "{prompts}@[2:4]"
    custom_generate_function_path: tests.e2e.test_evaluation.say_nothing
    rm_type: random
    min_eval_samples: 5
"""


def by_level(args: Any, sample: Sample) -> float:
    return {"easy": 1.0}[sample.metadata["level"]]


def say_nothing(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> Sample:
    assert evaluation
    sample.append_response_tokens(args, tokens=[5], log_probs=[-1.0], text="")
    sample.status = Status.COMPLETED
    return sample


def test_sets_are_asked_and_scored_each_in_its_own_way(
    tiny_model: Path, tiny_prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    yaml = tmp_path / "eval.yaml"
    yaml.write_text(YAML.format(prompts=tiny_prompts))
    run = new_run(tmp_path / "run", tiny_model, tiny_prompts, engine=engine, eval_config=str(yaml), log_passrate=True)
    yaml.unlink()  # what it said is frozen

    assert main(["eval", "--run", str(run.root)]) == 0

    greedy = read_samples(run.shard_path("rollout", 0, 0, 1, "greedy"))
    silent = read_samples(run.shard_path("rollout", 0, 0, 1, "silent"))
    assert [sample.index for sample in greedy] == [0, 1, 2, 3]
    assert greedy[0].tokens == greedy[1].tokens  # temperature 0
    assert {sample.response_length for sample in greedy} == {4}
    assert [sample.tokens[-1] for sample in silent] == [5, 5]
    assert {sample.metadata["rm_type"] for sample in silent} == {"random"}
    lines = [json.loads(line) for line in run.metrics_path("eval").read_text().splitlines()]
    assert (lines[0]["eval/greedy"], lines[0]["eval/greedy-pass@1"]) == (1.0, 1.0)
    assert lines[0]["eval/greedy-truncated_ratio"] == 1.0
    assert 0 < lines[0]["eval/greedy/prefix_cache_hit_rate"] < 1  # the second sample of a prompt finds it
    assert (lines[1]["eval/silent"], lines[1]["eval/silent/response_len/max"]) == (None, 1.0)  # fewer than 5 samples
