"""Decisions of the engine, or of the pass before the first step, are decided alike in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime_stages.config import Config
from slime_stages.errors import DataError
from stages.train.megatron.packing import pack_samples
from stages.train.megatron.step import Trainer
from stages.train.replay import EXPERTS
from tests.stages.train.batches import ROLLOUTS, iteration, settings, train, trainer_of
from tests.stages.train.megatron.tiny_models import (
    SETTINGS,
    TEMPERATURE,
    load_transformers_model,
    make_samples,
    save_tiny_model,
    weighted_loss,
    with_nuclei,
)

EXPERT_COUNT, LAYERS, CHOSEN = 4, 2, (2, 3)
LENGTHS = [4 + rollout // 2 + 2 + index % 5 for index, rollout in enumerate(ROLLOUTS)]
"""Tokens of the samples of an iteration."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


def experts_of(named: dict[str, Any], measure: Callable[[Any], bool]) -> set[int]:
    """Experts with a weight in any layer for which it is true."""
    return {
        expert
        for expert in range(EXPERT_COUNT)
        for layer in range(LAYERS)
        if measure(named[f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc2.weight"])
    }


def always(chosen: tuple[int, ...], token_count: int) -> Any:
    """Every token through the same experts in every layer."""
    return np.tile(np.array(chosen), (token_count, LAYERS, 1))


@pytest.mark.parametrize("recompute", [None, "full"])
def test_tokens_go_to_the_experts_that_they_are_given(model: Path, recompute: Any) -> None:
    trainer = Trainer(model, replace(SETTINGS, recompute_granularity=recompute))
    samples = make_samples(3, shared=True)
    routed = [replace(each, routed_experts=always(CHOSEN, len(each.tokens) - 1).reshape(-1, 4)) for each in samples]

    trainer.train_step([pack_samples(routed[:4]), pack_samples(routed[4:])], weighted_loss)

    assert experts_of(dict(trainer.named_parameters()), lambda weight: bool(weight.main_grad.any())) == set(CHOSEN)


def test_a_prompt_is_shared_by_samples_whose_tokens_went_to_the_same_experts_only(model: Path) -> None:
    first, second, *_ = make_samples(3, shared=True)
    counts = [len(sample.tokens) - 1 for sample in (first, second)]
    zeros, ones = np.zeros((counts[0], 4), np.int64), np.ones((counts[1], 4), np.int64)
    alike = [replace(first, routed_experts=zeros), replace(second, routed_experts=0 * ones)]
    unlike = [alike[0], replace(second, routed_experts=ones)]

    assert len(pack_samples(unlike).tokens) - len(pack_samples(alike).tokens) == first.prompt_length


def test_the_engines_experts_are_those_that_are_trained(model: Path) -> None:
    config = settings(use_rollout_routing_replay=True, weight_decay=0.0)
    before = {name: parameter.clone() for name, parameter in trainer_of(model, config).named_parameters()}

    trainer, _ = train(model, config, rollout_routed_experts=[always(CHOSEN, length - 1) for length in LENGTHS])

    named = {name: (parameter, before[name]) for name, parameter in trainer.named_parameters()}
    assert experts_of(named, lambda pair: not torch.equal(*pair)) == set(CHOSEN)


def test_the_experts_of_the_pass_before_the_first_step_are_kept_for_the_steps(model: Path) -> None:
    config = settings(use_routing_replay=True)

    _, steps = train(model, config)

    assert "log_probs" in steps.columns  # which one step alone would do without
    trainer = trainer_of(model, config)
    data = iteration(trainer, config)
    for position, tokens in data.with_rows(range(len(ROLLOUTS))).tokens.items():
        sample = replace(make_samples(0, shared=False)[0], tokens=np.asarray(tokens), response_length=1, columns={})
        _, [[expected]] = trainer.log_probs_and_experts([pack_samples([sample])])
        assert steps.columns[EXPERTS][position].tolist() == expected.ravel().tolist()


def test_experts_of_too_few_tokens_are_refused_with_the_sample(model: Path) -> None:
    config = settings(use_rollout_routing_replay=True, weight_decay=0.0)
    given = [always(CHOSEN, length - 1) for length in LENGTHS]
    given[5] = given[5][1:]
    data = iteration(trainer_of(model, settings()), config, rollout_routed_experts=given)

    with pytest.raises(DataError, match=f"sample 5 has {LENGTHS[5]} tokens, and those of {LENGTHS[5] - 2}"):
        data.with_rows([4, 5])


def test_experts_of_another_model_are_refused(model: Path) -> None:
    given = [always((1, 2, 3), length - 1) for length in LENGTHS]

    with pytest.raises(DataError, match="gave 30 experts for the 5 tokens of sample 0, each of which has 4"):
        train(model, settings(use_rollout_routing_replay=True), rollout_routed_experts=given)


def test_log_probs_are_among_the_tokens_that_each_one_was_drawn_from(model: Path) -> None:
    reference, samples = load_transformers_model(model), with_nuclei(make_samples(4, shared=False))

    [log_probs] = Trainer(model, SETTINGS).log_probs([pack_samples(samples)])

    expected = []
    for sample in samples:
        logits = reference(input_ids=torch.from_numpy(sample.tokens)[None]).logits[0] / TEMPERATURE
        assert sample.nuclei is not None
        bounds = sample.nuclei.offsets.tolist()
        for number, row in enumerate(range(sample.prompt_length - 1, len(sample.tokens) - 1)):
            target, ids = sample.tokens[row + 1], sample.nuclei.ids[bounds[number] : bounds[number + 1]]
            kept = torch.tensor(sorted({*ids.tolist(), int(target)} if len(ids) else range(96)))
            expected.append(logits[row, target] - logits[row, kept].logsumexp(0))
    torch.testing.assert_close(log_probs, torch.stack(expected).detach(), atol=1e-4, rtol=0)


def test_what_the_engine_drew_from_reaches_the_trainer_where_it_did_not_draw_from_all(model: Path) -> None:
    ids = [np.arange(3 * (2 + index % 5)) for index in range(len(ROLLOUTS))]
    offsets = [np.arange(0, len(each) + 1, 3) for each in ids]
    given: dict[str, Any] = {"rollout_top_p_token_ids": ids, "rollout_top_p_token_offsets": offsets}
    trainer = trainer_of(model, settings())

    def nuclei_of(config: Config, **attributes: Any) -> Any:
        return iteration(trainer, config, **attributes).with_rows([3, 0]).nuclei

    found = nuclei_of(settings(rollout_top_p=0.9), **given)

    assert {p: nuclei.offsets.tolist() for p, nuclei in found.items()} == {p: offsets[p].tolist() for p in (3, 0)}
    assert nuclei_of(settings(), **given) is None
    assert nuclei_of(settings(rollout_top_p=0.9)) is None
    assert nuclei_of(settings(rollout_top_p=0.9, loss_type="sft_loss"), **given) is None
