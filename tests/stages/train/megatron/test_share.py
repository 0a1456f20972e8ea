from __future__ import annotations

import numpy as np

from stages.train.megatron.packing import PackedSample, pack_samples
from stages.train.megatron.share import share_of


def sample(tokens: list[int], response_length: int, share_key: object = None) -> PackedSample:
    return PackedSample(tokens=np.array(tokens), response_length=response_length, share_key=share_key)


def test_a_rank_alone_has_the_row_as_it_stands() -> None:
    packed = pack_samples([sample([1, 2, 10, 11], 2), sample([3, 4, 40], 1)])

    share = share_of(packed)

    assert share.rows.tolist() == [0, 1, 2, 3, 4]
    assert share.padding == 0
    assert share.wanted.tolist() == [0, 1, 2]
    assert share.logit_rows.tolist() == packed.logit_rows.tolist()


def test_a_row_is_padded_to_a_multiple_with_its_first_token() -> None:
    share = share_of(pack_samples([sample([1, 2, 10, 11], 2)]), multiple=2)

    assert share.rows.tolist() == [0, 1, 2, 0]
    assert share.padding == 1


def test_of_two_ranks_one_has_the_outer_and_one_the_inner_quarters_of_a_group() -> None:
    packed = pack_samples([sample([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)])  # rows 0 to 7, of which 4 to 7 are asked for logits

    first, second = (share_of(packed, rank=rank, size=2) for rank in (0, 1))

    assert first.rows.tolist() == [0, 1, 6, 7]
    assert second.rows.tolist() == [2, 3, 4, 5]
    assert (first.wanted.tolist(), first.logit_rows.tolist()) == ([2, 3], [2, 3])
    assert (second.wanted.tolist(), second.logit_rows.tolist()) == ([0, 1], [2, 3])


def test_a_rank_sees_the_keys_of_both_in_the_order_of_the_group() -> None:
    packed = pack_samples([sample([1, 2, 3, 4, 5], 1)])  # rows 0 and 3 are the first rank's, then 1 and 2

    (attention,) = share_of(packed, rank=1, size=2).attention

    assert attention.keys.tolist() == [[0, 2, 3, 1]]
    assert attention.queries.tolist() == [[0, 1]]
    assert attention.visible is not None
    assert attention.visible[0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_siblings_stay_hidden_from_each_other_on_every_rank() -> None:
    packed = pack_samples([sample([1, 2, 10, 11], 2, "a"), sample([1, 2, 20, 21], 2, "a")])  # 1 2 10 20

    (attention,) = share_of(packed, rank=0, size=2).attention  # rows 0 and 3: the prompt's first and the 20

    assert attention.visible is not None
    assert attention.visible[0].astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 1]]


def test_all_ranks_have_as_many_rows_also_where_a_group_is_too_short_to_be_cut() -> None:
    packed = pack_samples([sample([1, 10], 1)])  # one row

    shares = [share_of(packed, rank=rank, size=2) for rank in (0, 1)]

    assert [len(share.rows) for share in shares] == [1, 1]
    assert [share.padding for share in shares] == [0, 1]
    assert [share.wanted.tolist() for share in shares] == [[0], []]
    assert shares[1].attention == ()
