from __future__ import annotations

import numpy as np

from stages.train.megatron.packing import PackedLater, PackedSample, pack_samples, target_counts


def sample(tokens: list[int], response_length: int, share_key: object = None) -> PackedSample:
    return PackedSample(tokens=np.array(tokens), response_length=response_length, share_key=share_key)


def test_samples_of_a_group_hold_their_prompt_once() -> None:
    packed = pack_samples([sample([1, 2, 10, 11], 2, "a"), sample([1, 2, 20, 21, 22], 3, "a")])

    assert packed.tokens.tolist() == [1, 2, 10, 20, 21]  # last response tokens 11 and 22 predict nothing
    assert packed.positions.tolist() == [0, 1, 2, 2, 3]
    assert packed.logit_rows.tolist() == [1, 2, 1, 3, 4]
    assert packed.targets.tolist() == [10, 11, 20, 21, 22]
    assert packed.sample_index.tolist() == [0, 0, 1, 1, 1]


def test_a_response_sees_the_prompt_and_itself_but_no_sibling() -> None:
    (batch,) = pack_samples([sample([1, 2, 10, 11], 2, "a"), sample([1, 2, 20, 21, 22], 3, "a")]).attention

    assert batch.visible is not None
    assert batch.visible[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_samples_without_a_share_key_repeat_their_prompt_and_need_no_mask() -> None:
    packed = pack_samples([sample([1, 2, 10, 11], 2), sample([1, 2, 20, 21], 2)])

    assert packed.tokens.tolist() == [1, 2, 10, 1, 2, 20]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert packed.logit_rows.tolist() == [1, 2, 4, 5]
    (batch,) = packed.attention
    assert batch.visible is None
    assert batch.rows.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_equal_keys_with_different_prompts_are_not_shared() -> None:
    packed = pack_samples([sample([1, 10], 1, "a"), sample([2, 10], 1, "a")])

    assert packed.tokens.tolist() == [1, 2]


def test_siblings_need_not_stand_next_to_each_other() -> None:
    packed = pack_samples([sample([1, 10, 11], 2, "a"), sample([5, 6, 50], 1, "b"), sample([1, 20, 21], 2, "a")])

    assert packed.tokens.tolist() == [1, 10, 20, 5, 6]
    assert packed.logit_rows.tolist() == [0, 1, 4, 0, 2]
    assert packed.targets.tolist() == [10, 11, 50, 20, 21]


def test_a_group_over_the_limit_is_split_and_repeats_its_prompt() -> None:
    samples = [sample([1, 2, 10, 11], 2, "a"), sample([1, 2, 20, 21], 2, "a"), sample([1, 2, 30, 31], 2, "a")]

    packed = pack_samples(samples, share_limit=4)

    assert packed.tokens.tolist() == [1, 2, 10, 20, 1, 2, 30]


def test_groups_of_similar_length_share_a_batch_and_short_ones_are_padded_with_their_first_row() -> None:
    packed = pack_samples([sample([1, 2, 3, 4, 5], 1), sample([6, 7, 8, 9], 1), sample([1, 2], 1)])

    long, short = packed.attention
    assert long.rows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 4]]
    assert long.lengths.tolist() == [4, 3]
    assert short.rows.tolist() == [[7]]


def test_a_sample_without_a_response_takes_no_room() -> None:
    packed = pack_samples([sample([1, 2, 3], 0, "a"), sample([1, 2, 3, 4], 1, "a")])

    assert packed.tokens.tolist() == [1, 2, 3]
    assert packed.sample_index.tolist() == [1]


def test_what_is_packed_later_is_what_is_packed_at_once() -> None:
    rows = [[sample([1, 2, 10], 1), sample([3, 20, 21], 2)], [sample([4, 5, 6], 1)]]

    later = PackedLater(rows)

    assert [each.tokens.tolist() for each in later] == [pack_samples(each).tokens.tolist() for each in rows]
    assert [each.targets.tolist() for each in later[1:]] == [[6]]
    assert target_counts(later) == target_counts(list(later)) == [3, 1]


def test_no_samples_make_an_empty_row() -> None:
    packed = pack_samples([sample([1, 2], 0)])

    assert packed.tokens.tolist() == []
    assert packed.attention == ()


def test_eight_samples_of_35_and_8_tokens_take_91_tokens_instead_of_336() -> None:
    prompt = list(range(35))
    shared = [sample([*prompt, *[100 + index] * 8], 8, "a") for index in range(8)]
    alone = [sample([*prompt, *[100 + index] * 8], 8) for index in range(8)]

    assert len(pack_samples(shared).tokens) == 35 + 8 * 7
    assert len(pack_samples(alone).tokens) == 8 * (35 + 7)
