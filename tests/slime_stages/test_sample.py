"""`Sample`: its dict form, and every rule by which a response grows."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slime_stages.sample import Sample, Status

DENSE = SimpleNamespace(sglang_speculative_algorithm=None)
MOE = SimpleNamespace(num_layers=2, moe_router_topk=1)


def grown(**fields: Any) -> Sample:
    """Two prompt tokens, and two response tokens with log-probs."""
    sample = Sample(tokens=[1, 2])
    sample.append_response_tokens(DENSE, tokens=[3, 4], log_probs=[-0.5, -0.25])
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def int32_base64(*numbers: int) -> str:
    return base64.b64encode(np.array(numbers, "<i4").tobytes()).decode()


def test_a_sample_without_any_value_is_valid() -> None:
    sample = Sample()

    sample.check_lengths()

    assert (sample.tokens, sample.status, sample.reward, sample.loss_mask) == ([], Status.PENDING, None, None)


def test_a_dict_and_back_keeps_fields_and_attributes_that_are_no_field() -> None:
    sample = grown(status=Status.FAILED, reward={"score": 0.5}, metadata={"rm_type": "math"})
    sample.trace = ["search", "answer"]  # type: ignore[attr-defined]
    sample.spec_info.add({"spec_accept_token_num": 3, "spec_draft_token_num": 4})

    data = sample.to_dict()
    back = Sample.from_dict(data)

    assert (data["status"], data["trace"]) == ("failed", ["search", "answer"])
    assert (data["spec_info"]["spec_accept_token_num"], data["prefix_cache_info"]["cached_tokens"]) == (3, 0)
    assert vars(back) == vars(sample)


@pytest.mark.parametrize("status", ["pending", "completed", "truncated", "aborted", "failed"])
def test_every_status_goes_through_a_dict_as_its_name(status: str) -> None:
    sample = Sample.from_dict({"status": status})

    assert sample.status is Status(status)
    assert sample.to_dict()["status"] == status


def test_a_status_set_as_text_by_a_plugin_is_written_as_its_name() -> None:
    assert Sample(status="aborted").to_dict()["status"] == "aborted"  # type: ignore[arg-type]


def test_a_dict_without_counters_gives_zero_counters() -> None:
    sample = Sample.from_dict({"status": "completed", "tokens": [1]})

    assert (sample.spec_info.spec_verify_ct, sample.prefix_cache_info.total_prompt_tokens) == (0, 0)
    assert (sample.spec_info.spec_accept_rate, sample.prefix_cache_info.prefix_cache_hit_rate) == (0.0, 0.0)


def test_a_dict_without_status_is_a_key_error_and_an_unknown_status_a_value_error() -> None:
    with pytest.raises(KeyError, match="status"):
        Sample.from_dict({"tokens": [1]})
    with pytest.raises(ValueError, match="paused"):
        Sample.from_dict({"status": "paused"})


def test_the_reward_value_is_the_reward_or_its_entry() -> None:
    plain, parts = Sample(reward=0.5), Sample(reward={"accuracy": 1.0, "format": 0.0})

    assert plain.get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
    assert plain.get_reward_value(SimpleNamespace()) == 0.5
    assert parts.get_reward_value(SimpleNamespace(reward_key="format")) == 0.0


def test_the_effective_length_leaves_out_masked_tokens() -> None:
    assert grown(loss_mask=[1, 0]).effective_response_length == 1
    assert Sample(tokens=[1, 2, 3], response_length=2).effective_response_length == 2
    assert grown().prompt_length == 2


def test_counters_add_up_over_calls() -> None:
    sample = Sample()
    for _ in range(2):
        sample.spec_info.add(
            {
                "spec_accept_token_num": 3,
                "spec_draft_token_num": 4,
                "spec_verify_ct": 2,
                "completion_tokens": 5,
            }
        )
        sample.prefix_cache_info.add({"cached_tokens": 1, "prompt_tokens": 4})

    assert (sample.spec_info.spec_accept_rate, sample.spec_info.spec_accept_length) == (0.75, 2.5)
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.25
