"""What the gate refuses besides what `test_batch` shows, and what a person has accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_stages.errors import DataError, UsageError
from slime_stages.run.acceptance import CHECKS, accept, accepted
from slime_stages.run.manifest import read_manifest
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Status
from slime_stages.stage import StageCall
from stages.train.gate import check_lengths, check_log_probs, check_micro_batches, check_samples
from tests.stages.train.attempts import Attempt, outcome
from tests.stages.train.small_runs import run_to_train
from tests.stages.train.test_batch import batch, gate, sample, settings


def test_too_many_prompts_whose_samples_all_have_the_same_reward_are_refused() -> None:
    data = batch([sample(index) for index in range(4)], [1.0, 1.0, 1.0, 0.0])

    check_samples(data, gate())
    check_samples(data, gate(max_zero_std_share=0.5))
    with pytest.raises(DataError, match="the samples of 1 of 2 prompts all have the same reward"):
        check_samples(data, gate(max_zero_std_share=0.4))
    check_samples(data, gate(max_zero_std_share=0.4, disable_rewards_normalization=True))


def test_a_sample_longer_than_the_model_has_positions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8}))
    data = batch([sample(0), sample(1, length=7)], [1.0, 0.0])

    with pytest.raises(DataError, match="sample 1 has 9 tokens, and the model 8 positions"):
        check_lengths(data, gate(), tmp_path)


def test_samples_that_make_no_even_micro_batches_are_refused_before_a_model_is_loaded() -> None:
    data = batch([sample(0), sample(1, length=5), sample(2), sample(3)], [1.0, 0.0, 1.0, 0.0])
    config = settings(actor_num_gpus_per_node=4)
    check_micro_batches(data, config)

    twos = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": 2})})
    with pytest.raises(UsageError, match=r"not a multiple of 4; the longest is sample 1 with 7 tokens") as found:
        check_micro_batches(data, twos)
    assert "--use-dynamic-batch-size" in str(found.value.hint)


def test_a_sample_that_does_not_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    data = batch([sample(0), sample(1, length=9), sample(2), sample(3)], [1.0, 0.0, 1.0, 0.0])

    check_micro_batches(data, settings(use_dynamic_batch_size=True, max_tokens_per_gpu=10))

    assert "sample 1 has 11 tokens, more than max_tokens_per_gpu = 10: it goes alone" in capsys.readouterr().err


def test_a_refusal_names_the_check_and_is_a_warning_once_that_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    data = batch([sample(0, status=Status.TRUNCATED), sample(1, version="7")], [1.0, 0.0])

    with pytest.raises(DataError) as found:
        check_samples(data, gate(max_truncated_share=0.25))
    assert "slime-stages train --iter 0 --accept versions" in str(found.value.hint)
    lenient = gate("versions", "truncated", "probs_diff", max_truncated_share=0.25)
    check_samples(data, lenient)
    check_log_probs(0.9, lenient)

    assert lenient.passed == ["versions", "truncated", "probs_diff"]
    assert capsys.readouterr().err.count("; it is accepted") == 3


def test_what_is_accepted_is_kept_with_the_iteration(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert accepted(run, 3) == frozenset()

    accept(run, 3, ["truncated"])
    accept(run, 3, ["zero_std"])

    assert accepted(run, 3) == {"truncated", "zero_std"}
    assert accepted(run, 4) == frozenset()
    with pytest.raises(UsageError, match="no check 'truncate'; there are prompts, versions") as found:
        accept(run, 3, ["truncate"])
    assert found.value.hint == "--accept truncated"


def test_every_check_that_refuses_has_a_name_that_can_be_accepted() -> None:
    source = Path(check_samples.__code__.co_filename).read_text()

    assert all(f'"{name}",' in source for name in CHECKS)


@pytest.mark.slow
def test_a_training_that_the_gate_refuses_is_made_once_a_person_accepts_it(
    tmp_path: Path, tiny_model: Path, tiny_prompts: Path
) -> None:
    run = run_to_train(tmp_path / "run", tiny_model, tiny_prompts, max_zero_std_share=0.01)
    call = StageCall(stage="train", run=run.root, iteration=0)
    refused = outcome(Attempt(call=call, log=tmp_path / "refused.log"))

    accept(run, 0, ["zero_std"])
    made = outcome(Attempt(call=call, log=tmp_path / "made.log"))

    assert (refused, made) == (65, 0)
    assert "all have the same reward; it is accepted" not in (tmp_path / "refused.log").read_text()
    assert read_manifest(run.manifest_path("train", 0)).outputs["accepted"] == ["zero_std"]
