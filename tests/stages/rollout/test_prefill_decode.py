"""A rollout job whose prompts one engine computes and another decodes, for real: caches go from one to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_stages.data.sample_table import read_samples
from slime_stages.launch.plans import ensure_plan
from slime_stages.sample import Sample
from slime_stages.serving.engine import Engine, EngineOptions
from slime_stages.stage import StageCall
from stages.rollout.run import run as run_rollout
from tests.e2e.runs import at_version_0, new_run

pytestmark = pytest.mark.usefixtures("verbs")

PREFILL = {"disaggregation_mode": "prefill", "load_balance_method": "follow_bootstrap_room"}
DECODE = {"disaggregation_mode": "decode"}
SETTINGS = {"rollout_shards": 1, "rollout_batch_size": 6, "rollout_max_response_len": 12}


def rollout(folder: Path, model: Path, prompts: Path, engine: Engine | None, **settings: object) -> list[Sample]:
    run = new_run(folder, model, prompts, engine=engine, **SETTINGS, **settings)
    ensure_plan(run, 0)
    path = run_rollout(StageCall(stage="rollout", run=run.root, iteration=0, shard=0))
    return read_samples(path.with_suffix(".parquet"))


def test_a_pair_gives_the_tokens_and_log_probs_that_one_engine_gives(
    tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine, tmp_path: Path
) -> None:
    alone = rollout(tmp_path / "one", tiny_model, tiny_prompts, at_version_0(tiny_engine))
    paired = rollout(tmp_path / "pair", tiny_model, tiny_prompts, None, prefill_num_servers=1)

    logs = sorted(path.name for path in (tmp_path / "pair" / "logs").glob("engine-*-gpu*.log"))
    assert [name.split("-")[-2] for name in logs] == ["decode", "prefill"]
    assert len(paired) == 12
    assert [sample.tokens for sample in paired] == [sample.tokens for sample in alone]
    assert [sample.rollout_log_probs for sample in paired] == [sample.rollout_log_probs for sample in alone]
    assert {tuple(sample.weight_versions) for sample in paired} == {("0",)}
    assert sum(sample.prefix_cache_info.cached_tokens for sample in paired) > 0  # of the prompt's other response


@pytest.mark.slow
def test_engines_of_others_that_work_in_pairs_are_asked_as_such(
    tiny_model: Path, tiny_prompts: Path, tiny_engine: Engine, tmp_path: Path
) -> None:
    alone = rollout(tmp_path / "one", tiny_model, tiny_prompts, at_version_0(tiny_engine))
    first = EngineOptions(layout=PREFILL, port_flags=("disaggregation_bootstrap_port",), engines_beside=1)
    second = EngineOptions(layout=DECODE, engines_beside=1)

    with (
        Engine(tiny_model, "0", options=first, log=tmp_path / "prefill.log") as prefill,
        Engine(tiny_model, "0", options=second, log=tmp_path / "decode.log") as decode,
    ):
        addresses = [engine.url.removeprefix("http://") for engine in (prefill, decode)]
        paired = rollout(tmp_path / "pair", tiny_model, tiny_prompts, None, rollout_external_engine_addrs=addresses)

    assert [sample.tokens for sample in paired] == [sample.tokens for sample in alone]
    assert [sample.rollout_log_probs for sample in paired] == [sample.rollout_log_probs for sample in alone]
