"""From samples to a batch: the spec's worked example, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slime_stages.errors import DataError
from stages.train.algorithm.conversion import (
    SampleColumns,
    SampleRows,
    TrainBatch,
    complete_log_probs,
    convert_samples,
    fill_rollout_ids,
    with_rows,
)
from stages.train.algorithm.rewards import normalize_rewards

WORKED_EXAMPLE: dict[str, Any] = {
    "index": [10, 11, 11, 12],
    "group_index": [5, 5, 5, 6],
    "rollout_id": [None, 0, 0, None],
    "total_length": [3, 4, 2, 2],
    "response_length": [2, 3, 1, 1],
    "trained_tokens": [2, 2, 1, 1],
    "status": ["completed", "truncated", "aborted", "completed"],
    "reward": [1.0, 0.0, 0.0, 1.0],
    "remove_sample": [False, False, True, False],
    "raw_reward_override": [None, None, 9, None],
}


ROWS: dict[str, list[Any]] = {
    "tokens": [[1, 2, 3], [1, 2, 3, 4], [1, 2], [1, 2]],
    "loss_mask": [None, [1, 0, 1], [1], None],
}


def batch_of(**changes: Any) -> TrainBatch:
    samples = SampleColumns(**{**WORKED_EXAMPLE, **changes})
    return convert_samples(samples, normalize_rewards(samples.reward, samples.group_index, std=True))


def with_some_rows(positions: list[int], **changes: Any) -> TrainBatch:
    rows = {name: {p: values[p] for p in positions} for name, values in {**ROWS, **changes}.items()}
    return with_rows(batch_of(), SampleRows(**rows))


def lists(rows: Any) -> dict[int, list[float]]:
    return {position: row.tolist() for position, row in rows.items()}


def test_the_worked_example_gives_slimes_values() -> None:
    batch = batch_of()

    assert batch.rollout_ids.tolist() == [1, 0, 0, 2]
    assert batch.loss_mask_sums.tolist() == [2, 2, 0, 1]
    assert batch.rollout_mask_sums.tolist() == [2, 2, 2, 1]
    assert batch.truncated.tolist() == [0, 1, 0, 0]
    assert batch.sample_indices.tolist() == [10, 11, 11, 12]
    assert batch.raw_reward.tolist() == [1.0, 0.0, 9.0, 1.0]
    assert batch.total_lengths.tolist() == [3, 4, 2, 2]
    assert batch.response_lengths.tolist() == [2, 3, 1, 1]
    assert batch.source_names == ["unknown"] * 4


def test_the_worked_examples_masks_are_those_of_the_samples_asked_for() -> None:
    assert lists(with_some_rows([0, 1, 2, 3]).loss_masks) == {0: [1, 1], 1: [1, 0, 1], 2: [0], 3: [1]}
    assert lists(with_some_rows([1, 3]).loss_masks) == {1: [1, 0, 1], 3: [1]}


def test_the_worked_examples_rewards_are_compared_within_their_prompt() -> None:
    assert batch_of().rewards.tolist() == pytest.approx([1.154698, -0.577349, -0.577349, 0.0], abs=1e-6)


def test_a_kept_sibling_joins_the_mask_sum_of_its_rollout() -> None:
    assert batch_of(remove_sample=[False] * 4).rollout_mask_sums.tolist() == [2, 3, 3, 1]


def test_removing_a_sample_leaves_its_own_mask_alone() -> None:
    mask = np.array([1], dtype=np.uint8)

    with_some_rows([2], loss_mask=[None, [1, 0, 1], mask, None])

    assert mask.tolist() == [1]


def test_missing_rollout_ids_become_the_smallest_free_integers() -> None:
    assert fill_rollout_ids([None, None, None]).tolist() == [0, 1, 2]
    assert fill_rollout_ids([1, None, 0, None, 3]).tolist() == [1, 2, 0, 4, 3]
    assert fill_rollout_ids([10**12, None]).tolist() == [10**12, 0]
    assert fill_rollout_ids([]).tolist() == []


def test_one_rollout_id_under_two_prompts_is_refused() -> None:
    with pytest.raises(DataError, match="rollout_id 0 stands for attempts at two prompts, group_index 5 and 6"):
        batch_of(rollout_id=[None, 0, 0, 0])


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="position 1 has 2 loss_mask for 3 response tokens"):
        with_some_rows([0, 1], loss_mask=[None, [1, 0], [1], None])


def test_log_probs_come_along_and_removed_samples_need_none() -> None:
    batch = with_some_rows([0, 1, 2, 3], rollout_log_probs=[[-1, -2], [-1, 0, -1], None, [-3]])

    assert lists(batch.rollout_log_probs) == {0: [-1, -2], 1: [-1, 0, -1], 2: [0], 3: [-3]}
    assert batch.teacher_log_probs is None


def test_samples_that_never_had_log_probs_are_fine() -> None:
    assert with_some_rows([0, 3], rollout_log_probs=[None] * 4).rollout_log_probs is None


def test_a_rank_whose_samples_need_no_log_probs_has_zeros_where_others_have_some() -> None:
    removed, trained = (with_some_rows([p], rollout_log_probs=[None] * 4) for p in (2, 3))

    assert lists(complete_log_probs(removed, ["rollout_log_probs"]).rollout_log_probs) == {2: [0]}
    with pytest.raises(DataError, match="position 3 has no rollout_log_probs"):
        complete_log_probs(trained, ["rollout_log_probs"])


def test_a_trained_sample_without_log_probs_among_others_is_refused() -> None:
    with pytest.raises(DataError, match="position 0 has no rollout_log_probs"):
        with_some_rows([0, 1], rollout_log_probs=[None, [-1, 0, -1], None, [-3]])


def test_log_probs_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="position 3 has 2 teacher_log_probs for 1 response tokens"):
        with_some_rows([3], teacher_log_probs=[[-1, -2], [-1, 0, -1], None, [-3, -4]])


def test_source_names_come_along() -> None:
    assert batch_of(source_name=["gsm8k", None, None, "math"]).source_names == ["gsm8k", "unknown", "unknown", "math"]


def test_no_samples_make_an_empty_batch() -> None:
    batch = batch_of(**{name: [] for name in WORKED_EXAMPLE})

    assert batch.rollout_mask_sums.tolist() == []
