"""Every rule by which a response grows, and what is refused."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slime_stages.data.counters import SpecInfo
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


def test_trainable_tokens_get_mask_1_and_their_log_probs() -> None:
    sample = grown(response="")
    sample.append_response_tokens(DENSE, tokens=(5,), log_probs=(-1.0,), text="five")

    assert (sample.tokens, sample.response_length, sample.response) == ([1, 2, 3, 4, 5], 3, "five")
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 1], [-0.5, -0.25, -1.0])


def test_tool_tokens_get_mask_0_and_log_prob_0() -> None:
    sample = grown()
    sample.append_response_tokens(DENSE, tokens=[7, 8], trainable=False, text="<result>")

    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0, 0], [-0.5, -0.25, 0.0, 0.0])


def test_trainable_tokens_need_log_probs_and_tool_tokens_must_come_without() -> None:
    with pytest.raises(ValueError, match="1 trainable response tokens without log-probs"):
        Sample().append_response_tokens(DENSE, tokens=[1])
    with pytest.raises(ValueError, match="not trainable"):
        Sample().append_response_tokens(DENSE, tokens=[1], log_probs=[0.0], trainable=False)
    with pytest.raises(ValueError, match="1 log-probs for 2 tokens"):
        Sample().append_response_tokens(DENSE, tokens=[1, 2], log_probs=[-1.0])


def test_a_missing_mask_becomes_ones_for_the_tokens_before() -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=2, rollout_log_probs=[-1.0, -2.0])
    sample.append_response_tokens(DENSE, tokens=[4], trainable=False)

    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0], [-1.0, -2.0, 0.0])


def test_missing_log_probs_become_zeros_for_tool_tokens_but_not_for_trainable_ones() -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=2)
    with pytest.raises(ValueError, match="2 response tokens so far have no log-probs"):
        sample.append_response_tokens(DENSE, tokens=[4], log_probs=[-1.0])

    sample.append_response_tokens(DENSE, tokens=[4], trainable=False)

    assert sample.rollout_log_probs == [0.0, 0.0, 0.0]


def test_text_alone_and_nothing_at_all_leave_the_tokens_alone() -> None:
    sample = grown(response="a")
    sample.append_response_tokens(DENSE, text="b")
    sample.append_response_tokens(DENSE)

    assert (sample.response, sample.tokens, sample.loss_mask) == ("ab", [1, 2, 3, 4], [1, 1])


def test_top_p_ids_are_joined_and_their_offsets_shifted() -> None:
    sample = Sample(tokens=[1])
    first = {"top_p_token_ids": int32_base64(5, 6, 7), "top_p_token_offsets": int32_base64(0, 1, 3)}
    second = {"top_p_kept_token_ids": np.array([8, 9]), "top_p_kept_token_offsets": [0, 2]}
    sample.append_response_tokens(DENSE, tokens=[5, 6], log_probs=[-1.0, -1.0], meta_info=first)
    sample.append_response_tokens(DENSE, tokens=[8], log_probs=[-1.0], meta_info=second)

    assert sample.rollout_top_p_token_ids is not None
    assert sample.rollout_top_p_token_offsets is not None
    assert sample.rollout_top_p_token_ids.tolist() == [5, 6, 7, 8, 9]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 1, 3, 5]


def test_tool_tokens_get_empty_nuclei_where_there_are_any_and_never_make_them() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(DENSE, tokens=[2], trainable=False)
    assert sample.rollout_top_p_token_offsets is None

    meta = {"top_p_token_ids": [5, 6], "top_p_token_offsets": [0, 2]}
    sample.append_response_tokens(DENSE, tokens=[5], log_probs=[-1.0], meta_info=meta)
    sample.append_response_tokens(DENSE, tokens=[3, 4], trainable=False)

    assert sample.rollout_top_p_token_offsets is not None
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("meta", "complaint"),
    [
        ({"top_p_token_ids": [5]}, "both token ids and offsets"),
        ({"top_p_token_offsets": [0, 1]}, "both token ids and offsets"),
        ({"top_p_token_ids": [5], "top_p_token_offsets": [1, 1]}, "from 0 to 1"),
        ({"top_p_token_ids": [5], "top_p_token_offsets": [0, 2]}, "from 0 to 1"),
        ({"top_p_token_ids": [5], "top_p_token_offsets": [0, 1, 1]}, "must be 2"),
        ({"top_p_token_ids": [], "top_p_token_offsets": []}, "must be 2"),
    ],
)
def test_top_p_ids_out_of_line_are_refused(meta: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sample(tokens=[1]).append_response_tokens(DENSE, tokens=[5], log_probs=[-1.0], meta_info=meta)


def test_top_p_ids_must_be_there_for_all_trained_tokens_or_for_none() -> None:
    meta = {"top_p_token_ids": [5], "top_p_token_offsets": [0, 1]}
    with pytest.raises(ValueError, match="2 response tokens so far have no top-p ids"):
        grown().append_response_tokens(DENSE, tokens=[5], log_probs=[-1.0], meta_info=meta)

    sample = Sample(tokens=[1])
    sample.append_response_tokens(DENSE, tokens=[5], log_probs=[-1.0], meta_info=meta)
    with pytest.raises(ValueError, match="2 top-p offsets for 2 response tokens"):
        sample.append_response_tokens(DENSE, tokens=[6], log_probs=[-1.0])


def test_routed_experts_of_the_first_call_cover_all_tokens_but_the_last() -> None:
    sample = Sample(tokens=[1, 2])
    meta = {"routed_experts": int32_base64(0, 1, 2, 3), "pd_prefill_routed_experts": "ignored"}
    sample.append_response_tokens(MOE, tokens=[3], log_probs=[-1.0], meta_info=meta)

    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts.tolist() == [[[0], [1]], [[2], [3]]]


def test_routed_experts_of_later_calls_keep_the_rows_before_their_start() -> None:
    sample = Sample(tokens=[1, 2])
    sample.append_response_tokens(
        MOE, tokens=[3], log_probs=[-1.0], meta_info={"routed_experts": np.array([0, 1, 2, 3])}
    )
    meta = {"routed_experts": np.array([7, 8, 9, 9], "<i4").tobytes(), "routed_experts_start_len": 1}
    sample.append_response_tokens(MOE, tokens=[4], log_probs=[-1.0], meta_info=meta)

    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts.tolist() == [[[0], [1]], [[7], [8]], [[9], [9]]]


def test_routed_experts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 numbers for 2 rows of 2 layers × 1"):
        Sample(tokens=[1, 2]).append_response_tokens(
            MOE, tokens=[3], log_probs=[-1.0], meta_info={"routed_experts": [0, 1, 2]}
        )
    late = {"routed_experts": [0, 1], "routed_experts_start_len": 1}
    with pytest.raises(ValueError, match="start at row 1, but only 0 rows are known"):
        Sample(tokens=[1, 2]).append_response_tokens(MOE, tokens=[3], log_probs=[-1.0], meta_info=late)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ({"type": "stop"}, Status.COMPLETED),
        ({"type": "length"}, Status.TRUNCATED),
        ({"type": "abort"}, Status.ABORTED),
        ({"type": "something_new"}, Status.PENDING),
        ("stop", Status.COMPLETED),
        (None, Status.PENDING),
    ],
)
def test_the_finish_reason_decides_the_status(reason: Any, status: Status) -> None:
    sample = Sample()
    sample.append_response_tokens(DENSE, meta_info={"finish_reason": reason})

    assert sample.status is status


def test_terminal_info_is_taken_at_the_end_of_a_call_only() -> None:
    sample = Sample()
    meta = {"finish_reason": {"type": "stop"}, "weight_version": 7, "cached_tokens": 2, "prompt_tokens": 4}
    sample.append_response_tokens(DENSE, meta_info=meta, update_terminal_info=False)
    sample.append_response_tokens(DENSE, meta_info={"weight_version": 7})
    assert (sample.weight_versions, sample.status) == ([], Status.PENDING)

    sample.append_response_tokens(DENSE, meta_info=meta)

    assert (sample.weight_versions, sample.status) == (["7"], Status.COMPLETED)
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.5


def test_speculative_counters_are_taken_of_engines_that_draft_also_where_others_have_started_them() -> None:
    plain = {"finish_reason": {"type": "stop"}, "completion_tokens": 6}
    of_external, of_ours, of_none = Sample(), Sample(), Sample()

    of_external.append_response_tokens(DENSE, meta_info={**plain, "spec_verify_ct": 3})
    of_ours.append_response_tokens(SimpleNamespace(sglang_speculative_algorithm="EAGLE"), meta_info=plain)
    of_none.append_response_tokens(DENSE, meta_info=plain)

    assert (of_external.spec_info.spec_accept_length, of_external.spec_info.completion_token_num) == (2.0, 6)
    assert of_ours.spec_info.completion_token_num == 6
    assert of_none.spec_info == SpecInfo()


@pytest.mark.parametrize("name", ["loss_mask", "rollout_log_probs", "teacher_log_probs"])
def test_lists_that_a_plugin_left_too_short_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has 1 entries for 2 response tokens"):
        grown(**{name: [1]}).check_lengths()


def test_more_response_than_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="3 response tokens, but only 2 tokens in all"):
        Sample(tokens=[1, 2], response_length=3).check_lengths()


def test_a_refused_append_leaves_the_sample_as_it_was() -> None:
    sample = grown(response="a")
    before = dict(vars(sample))
    bad = {"top_p_token_ids": [5], "finish_reason": {"type": "stop"}}

    with pytest.raises(ValueError, match="top-p"):
        sample.append_response_tokens(DENSE, tokens=[5], log_probs=[-1.0], text="b", meta_info=bad)

    assert vars(sample) == before


def test_a_stream_can_restore_its_snapshot_and_append_again() -> None:
    sample = grown()
    snapshot = dict(vars(sample))
    for tokens in ([5], [5, 6]):
        vars(sample).update(snapshot)
        sample.append_response_tokens(DENSE, tokens=tokens, log_probs=[-1.0] * len(tokens))

    assert (sample.tokens, sample.loss_mask) == ([1, 2, 3, 4, 5, 6], [1, 1, 1, 1])
