from __future__ import annotations

from typing import Any

import pytest

from slime_stages.errors import UsageError
from tests.slime_stages.config.settings import resolved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_temperature": 0.0}, "rollout_temperature = 0.0 (--rollout-temperature) must be above 0"),
        ({"rollout_top_k": 0}, "rollout_top_k = 0 (--rollout-top-k) must be 1 or more"),
        ({"rollout_shards": 5}, "rollout_shards = 5 (--rollout-shards) is more than the 4 prompts"),
        ({"rollout_max_context_len": 8, "rollout_max_prompt_len": 8}, "rollout_max_prompt_len = 8"),
        ({"rollout_max_context_len": 1}, "rollout_max_context_len = 1"),
        ({"staleness": -1}, "staleness = -1 (--staleness) should be greater than or equal to 0"),
        ({"prompt_data": []}, "prompt_data = [] (--prompt-data) names no file"),
        ({"disable_rollout_global_dataset": True}, "says that there is no prompt data, but there is"),
        ({"prompt_data": [], "disable_rollout_global_dataset": True}, "leaves nothing to ask"),
        ({"multimodal_keys": {"video": "videos"}}, "has video, which is not supported"),
        ({"serving_mode": "external"}, 'serving_mode = "external" (--serving-mode) needs the engines'),
        ({"serving_mode": "job", "rollout_external_engine_addrs": ["a:1"]}, "starts engines, but"),
        ({"rollout_external_engine_addrs": ["http://a:1"]}, "has http://a:1, which is not HOST:PORT"),
        ({"sglang": {"tp_size": 2}}, "sglang.tp_size = 2 (--sglang) is not yours to set"),
        ({"sglang": {"host": "::"}}, "sglang.host = "),
        (
            {"sglang": {"speculative_algorithm": "NGRAM"}, "use_rollout_routing_replay": True},
            'sglang.speculative_algorithm = "NGRAM" (--sglang) loses the experts of drafted tokens',
        ),
        ({"sglang": {"speculative_algorithm": "EAGLE"}, "use_rollout_routing_replay": True}, "loses the experts"),
        ({"eval_interval": 5}, "eval_interval = 5 (--eval-interval) needs something to evaluate on"),
        ({"eval_prompt_data": ["/dev.jsonl"]}, "has 1 words, not pairs"),
        ({"eval_prompt_data": ["a", "/x", "a", "/y"]}, "has the name a 2 times"),
        ({"eval_prompt_data": ["../a", "/x"]}, "has the name ../a, which is no folder's"),
        ({"rm_type": "remote_rm"}, "needs the address of a reward server"),
        (
            {"eval_datasets": {"a": {"path": "/x", "rm_type": "remote_rm"}}},
            "scores a by remote_rm, which needs the address",
        ),
        ({"code_timeout": 60.0}, "code_timeout = 60.0 (--code-timeout) does not fit into reward_timeout = 60 s"),
        ({"reward_shard_timeout": 30.0}, "does not fit into reward_shard_timeout = 30 s, which is for all samples"),
        ({"warn_probs_diff": 0.5}, "is above refuse_probs_diff = 0.05"),
        ({"global_batch_size": 5}, "is more than the 4 prompts x 1 samples = 4 rollouts"),
        ({"global_batch_size": 3}, "1 would never be trained on"),
        (
            {"num_steps_per_rollout": 3},
            "num_steps_per_rollout = 3 (--num-steps-per-rollout) times global_batch_size = 1",
        ),
        ({"num_steps_per_rollout": 2, "global_batch_size": 4}, "num_steps_per_rollout = 2"),
        ({"actor_num_nodes": 3, "tensor_model_parallel_size": 2}, "does not divide the 3 processes"),
        (
            {"actor_num_nodes": 6, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
            "times pipeline_model_parallel_size is 4, which does not divide the 6 processes",
        ),
        (
            {"actor_num_nodes": 4, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 4},
            "is 4, which does not divide the 2 processes of a stage",
        ),
        ({"sequence_parallel": True}, "splits tokens over tensor-parallel processes, and there are none"),
        ({"decoder_last_pipeline_num_layers": 1}, "is about pipeline stages, and there is one"),
        (
            {
                "actor_num_nodes": 2,
                "pipeline_model_parallel_size": 2,
                "num_layers_per_virtual_pipeline_stage": 1,
                "decoder_last_pipeline_num_layers": 1,
            },
            "cuts stages into equal pieces, while decoder_last_pipeline_num_layers makes them unequal",
        ),
        (
            {"use_routing_replay": True, "disable_compute_advantages_and_returns": True, "loss_type": "sft_loss"},
            "replays the experts of the pass for old log-probs, which this loss does without",
        ),
        ({"enable_mtp_training": True}, "trains layers that are not loaded"),
        (
            {"mtp_num_layers": 1, "enable_mtp_training": True, "actor_num_nodes": 2, "context_parallel_size": 2},
            "needs all tokens of a sample in one process",
        ),
        (
            {
                "mtp_num_layers": 1,
                "actor_num_nodes": 2,
                "pipeline_model_parallel_size": 2,
                "megatron": {"overlap_grad_reduce": True},
            },
            "which overlap_grad_reduce would wait for",
        ),
        ({"recompute_method": "block"}, "is read only with recompute_granularity = full"),
        ({"recompute_modules": ("moe",)}, "is read only with recompute_granularity = selective"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ("moe",), "use_routing_replay": True},
            "runs experts again apart from their layer",
        ),
        ({"use_dynamic_batch_size": True}, "needs to know how much fits"),
        ({"actor_num_gpus_per_node": 8}, "has not one rollout for each of 8 data-parallel processes"),
        ({"micro_batch_size": 3}, "is not a multiple of 3"),
        ({"min_lr": 1.0}, "min_lr = 1.0 (--min-lr) is above lr = 1e-06"),
        ({"lr_decay_style": "cosine"}, "needs to know when the decay ends"),
        ({"lr_decay_style": "cosine", "num_rollout": 3, "lr_warmup_iters": 3}, "which takes 3 steps"),
        ({"use_tis": True, "use_rollout_logprobs": True}, "use_tis = true"),
        ({"eps_clip_c": 1.0}, "eps_clip_c = 1.0 (--eps-clip-c) must be above 1"),
        ({"tis_clip_low": 3.0}, "tis_clip_low = 3.0 (--tis-clip-low) is above tis_clip = 2.0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(**settings)

    assert message in caught.value.message


def test_a_batch_that_does_not_divide_gets_the_nearest_one_that_does() -> None:
    with pytest.raises(UsageError) as caught:
        resolved(n_samples_per_prompt=3, global_batch_size=5)

    assert caught.value.hint == "global_batch_size = 4 does"


@pytest.mark.parametrize(
    ("settings", "size", "steps"),
    [
        ({}, 8, 1),
        ({"global_batch_size": 2}, 2, 4),
        ({"num_steps_per_rollout": 2}, 4, 2),
        ({"num_steps_per_rollout": 2, "global_batch_size": 4}, 4, 2),
    ],
)
def test_batch_size_and_steps_follow_from_each_other(settings: dict[str, int], size: int, steps: int) -> None:
    config = resolved(n_samples_per_prompt=2, **settings).config

    assert (config.train.global_batch_size, config.train.num_steps_per_rollout) == (size, steps)
    assert (config.global_batch_size, config.steps_per_iteration) == (size, steps)


def test_what_nobody_gave_follows_from_what_was_given() -> None:
    config = resolved(
        rollout_max_context_len=64, eps_clip=0.3, rollout_temperature=0.7, reward_key="acc", label_key="answer"
    ).config

    assert config.data.rollout_max_prompt_len == 63
    assert config.algorithm.eps_clip_high == 0.3
    assert (config.eval.eval_temperature, config.eval.eval_label_key) == (0.7, "answer")
    assert config.reward.eval_reward_key == "acc"


def test_what_was_given_is_not_derived() -> None:
    config = resolved(
        eps_clip_high=0.28, eval_temperature=0.0, rollout_max_context_len=64, rollout_max_prompt_len=8
    ).config

    assert config.algorithm.eps_clip_high == 0.28
    assert config.eval.eval_temperature == 0.0
    assert config.data.rollout_max_prompt_len == 8


def test_one_sample_per_prompt_has_no_standard_deviation() -> None:
    assert resolved(n_samples_per_prompt=1).config.algorithm.grpo_std_normalization is False
    assert resolved(n_samples_per_prompt=2).config.algorithm.grpo_std_normalization is True


def test_addresses_of_engines_turn_on_external_serving() -> None:
    result = resolved(rollout_external_engine_addrs=["gpu1:30000", "[::1]:30001"])

    assert result.config.serving.serving_mode == "external"
    assert result.sources["serving_mode"] == "derived from rollout_external_engine_addrs"


def test_settings_without_effect_are_warned_about() -> None:
    assert resolved(n_samples_per_prompt=2, tis_clip=3.0).warnings == (
        "tis_clip (--tis-clip) has no effect without use_tis",
    )
    assert resolved(n_samples_per_prompt=2, tis_clip=3.0, use_tis=True).warnings == ()
    assert "nothing is learned" in resolved().warnings[0]
    assert "cut distribution" in resolved(n_samples_per_prompt=2, rollout_top_p=0.9).warnings[0]


def test_stale_samples_without_a_correction_are_warned_about() -> None:
    assert "nothing corrects for it" in resolved(n_samples_per_prompt=2, staleness=1).warnings[0]
    assert resolved(n_samples_per_prompt=2, staleness=1, use_tis=True).warnings == ()
    assert resolved(n_samples_per_prompt=2, staleness=1, use_rollout_logprobs=True).warnings == ()


def test_experts_may_be_replayed_of_drafts_without_branches() -> None:
    chain = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": "1"}

    assert resolved(sglang=chain, use_rollout_routing_replay=True).config.train.use_rollout_routing_replay
