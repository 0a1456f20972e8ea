from __future__ import annotations

import numpy as np

from stages.train.megatron.mtp_rows import mtp_rows
from stages.train.megatron.packing import PackedSample, pack_samples


def sample(*tokens: int, response: int, weights: list[float], share_key: int | None = None) -> PackedSample:
    return PackedSample(
        tokens=np.array(tokens, np.int64),
        response_length=response,
        share_key=share_key,
        columns={"weight": np.array(weights, np.float32)},
    )


def test_siblings_that_share_a_prompt_have_rows_of_their_own() -> None:
    siblings = [
        sample(1, 2, 3, 10, 11, response=2, weights=[0.5, 0.25], share_key=7),
        sample(1, 2, 3, 20, 21, 22, response=3, weights=[1.0, 0.0, 2.0], share_key=7),
    ]
    packed = pack_samples(siblings)
    assert packed.tokens.tolist() == [1, 2, 3, 10, 20, 21]

    (row,) = mtp_rows(packed, 1)

    assert row.packed.tokens.tolist() == [2, 3, 10, 2, 3, 20, 21]  # beside the token before each
    assert row.sources.tolist() == [0, 1, 2, 0, 1, 2, 4]
    assert row.packed.positions.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert row.packed.logit_rows.tolist() == [1, 2, 4, 5, 6]
    assert row.packed.targets.tolist() == [10, 11, 20, 21, 22]
    assert row.packed.columns["weight"].tolist() == [0.5, 0.25, 1.0, 0.0, 2.0]


def test_a_second_layer_sees_one_token_further_and_takes_the_rows_of_the_first() -> None:
    packed = pack_samples([sample(1, 2, 10, 11, 12, response=3, weights=[1.0, 2.0, 3.0])])

    first, second = mtp_rows(packed, 2)

    assert (first.packed.tokens.tolist(), first.packed.targets.tolist()) == ([2, 10, 11], [10, 11, 12])
    assert (second.packed.tokens.tolist(), second.packed.targets.tolist()) == ([10, 11], [11, 12])
    assert second.sources.tolist() == [0, 1]
    assert second.packed.columns["weight"].tolist() == [2.0, 3.0]


def test_a_sample_without_a_response_or_too_short_takes_no_part() -> None:
    nothing, short = sample(5, 6, response=0, weights=[]), sample(3, 4, response=1, weights=[1.0])
    long = sample(1, 10, 11, response=2, weights=[1.0, 2.0])

    (row,) = mtp_rows(pack_samples([nothing, short, long]), 1)

    assert (row.packed.tokens.tolist(), row.sources.tolist()) == ([10], [1])
    assert (row.packed.targets.tolist(), row.packed.columns["weight"].tolist()) == ([11], [2.0])


def test_where_nothing_can_be_predicted_a_row_without_weight_stands_in() -> None:
    packed = pack_samples([sample(3, 4, response=1, weights=[1.0])])

    for row in mtp_rows(packed, 2):
        assert (row.packed.tokens.tolist(), row.sources.tolist()) == ([0], [0])
        assert row.packed.columns["weight"].tolist() == [0.0]
