from __future__ import annotations

from slime_stages.data.counters import PrefixCacheInfo, SpecInfo


def test_drafts_are_counted_under_either_name_that_sglang_has_for_them() -> None:
    info = SpecInfo()

    info.add({"spec_accept_token_num": 6, "spec_draft_token_num": 9, "spec_verify_ct": 3, "completion_tokens": 9})
    info.add({"spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 3, "spec_verify_ct": 1, "completion_tokens": 4})
    info.add({"completion_tokens": 7})

    assert info == SpecInfo(spec_accept_token_num=9, spec_draft_token_num=12, spec_verify_ct=4, completion_token_num=20)
    assert info.spec_accept_rate == 0.75
    assert info.spec_accept_length == 5.0


def test_prompt_tokens_found_in_the_cache_are_counted_over_the_turns() -> None:
    info = PrefixCacheInfo()

    info.add({"cached_tokens": 0, "prompt_tokens": 10})
    info.add({"cached_tokens": 15, "prompt_tokens": 20})

    assert info.prefix_cache_hit_rate == 0.5
