"""First fit, splitting and the largest differencing method on numbers that fit on one hand."""

from __future__ import annotations

from stages.train.algorithm.packing import (
    pack_first_fit,
    partition_balanced,
    split_bin,
    split_largest,
    split_over_capacity,
)


def test_first_fit_takes_the_first_bin_with_room() -> None:
    assert pack_first_fit([6, 5, 4, 3, 9, 2], 10) == [[0, 2], [1, 3, 5], [4]]


def test_a_sample_over_capacity_is_alone_even_with_empty_samples_about() -> None:
    assert pack_first_fit([25, 0, 4], 10) == [[0], [1, 2]]


def test_no_lengths_make_no_bins() -> None:
    assert pack_first_fit([], 10) == []


def test_a_bin_splits_into_halves_of_about_equal_length() -> None:
    assert split_bin([0, 1, 2, 3], [5, 3, 2, 4]) == ([0, 2], [3, 1])


def test_the_longest_bin_of_several_is_split_until_there_are_enough() -> None:
    assert split_largest([[0], [1, 2], [3, 4]], [9, 1, 2, 3, 4], 4) == [[0], [1, 2], [4], [3]]
    assert split_largest([[0], [1, 2]], [9, 1, 2], 5) == [[0], [2], [1]]


def test_bins_over_capacity_are_split_in_place() -> None:
    assert split_over_capacity([[0, 1, 2], [3]], [4, 4, 4, 20], 8) == [[0, 2], [1], [3]]


def test_partitions_are_balanced_by_the_largest_differences() -> None:
    # The textbook's 8, 7, 6, 5, 4: sums 16 and 14.
    assert partition_balanced([8, 7, 6, 5, 4], 2, equal_size=False) == [[1, 3, 4], [0, 2]]


def test_partitions_of_equal_size_hold_equally_many() -> None:
    assert partition_balanced([1, 2, 3, 10], 2, equal_size=True) == [[0, 3], [1, 2]]


def test_no_partition_is_empty() -> None:
    assert partition_balanced([1, 1, 1], 3, equal_size=False) == [[2], [1], [0]]
