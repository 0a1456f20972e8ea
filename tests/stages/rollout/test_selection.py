"""Which groups a shard keeps, by slime's rules, with every prompt accounted for."""

from __future__ import annotations

import pytest

from slime_stages.errors import DataError
from slime_stages.run.journal import Entry
from slime_stages.sample import Sample, Status
from stages.rollout.judging import Verdict
from stages.rollout.selection import Group, Selection

GOOD, BAD = Verdict(keep=True), Verdict(keep=False, reason="zero_std_1.0")


def group(position: int, status: Status = Status.COMPLETED) -> Group:
    return [Sample(group_index=position, index=position, status=status)]


def selection(wanted: int = 2, *, chunk: int = 2, first: int = 0, **more: object) -> Selection:
    """Number k of the stream is at position 10 + k."""
    return Selection(
        wanted=wanted,
        enough=more.pop("enough", wanted),  # type: ignore[arg-type]
        chunk=chunk,
        most_refills=more.pop("most_refills", 16),  # type: ignore[arg-type]
        first=first,
        fresh=lambda number: group(10 + number, Status.PENDING),
        **more,  # type: ignore[arg-type]
    )


def positions(groups: list[Group]) -> list[int | None]:
    return [group[0].group_index for group in groups]


def begun(made: Selection) -> list[int | None]:
    """Begins all that can be begun now."""
    found = []
    while (group := made.next()) is not None:
        found.append(group)
    return positions(found)


def counts(made: Selection) -> tuple[int, int, int, int, int]:
    """issued, taken, kept, dropped, carried."""
    found = made.counts()
    return found["issued"], found["taken"], found["kept"], found["dropped"], found["carried"]


def test_without_a_filter_every_prompt_is_asked_once_and_kept() -> None:
    made = selection(3, chunk=3)

    assert begun(made) == [10, 11, 12]
    for position in (12, 10, 11):
        made.take(group(position), GOOD)

    assert made.is_done
    assert counts(made) == (3, 0, 3, 0, 0)


def test_one_rejection_submits_a_whole_chunk_more() -> None:
    made = selection(2, chunk=3)
    assert begun(made) == [10, 11, 12]

    made.take(group(10), BAD)
    assert begun(made) == []  # 2 of 3 are left, as many as are wanted
    made.take(group(11), BAD)

    assert begun(made) == [13, 14, 15]


def test_good_groups_beyond_those_wanted_are_carried_not_thrown_away() -> None:
    made = selection(2, chunk=4)
    begun(made)
    for position in (13, 10, 11):
        made.take(group(position), GOOD)
    made.leave(group(12, Status.ABORTED))

    assert positions(made.kept) == [13, 10]
    assert positions(made.carried) == [11, 12]
    assert counts(made) == (4, 0, 2, 0, 2)


def test_what_was_submitted_but_never_begun_was_not_issued() -> None:
    made = selection(1, chunk=5)
    first = made.next()
    assert first is not None

    made.take(group(10), GOOD)

    assert made.next() is None
    assert (made.following, counts(made)) == (1, (1, 0, 1, 0, 0))


def test_handed_over_groups_come_before_fresh_ones_and_what_is_not_taken_is_carried_on() -> None:
    made = selection(2, chunk=2, taken=[group(3), group(4), group(5)])

    assert begun(made) == [3, 4]
    made.take(group(3), GOOD)
    made.take(group(4), GOOD)

    assert positions(made.carried) == [5]
    assert counts(made) == (0, 3, 2, 0, 1)


def test_fresh_prompts_make_up_what_was_not_handed_over() -> None:
    assert begun(selection(3, chunk=3, taken=[group(4)], first=5)) == [4, 15, 16]


def test_the_buffer_is_chosen_from_by_the_function_given() -> None:
    def newest(buffer: list[Group], count: int) -> list[Group]:
        return [buffer.pop() for _ in range(min(1, count))]

    assert begun(selection(2, taken=[group(3), group(4)], choose=newest)) == [4, 10]


def test_an_insufficient_group_is_kept_where_another_prompt_would_have_to_be_asked() -> None:
    fallback = Verdict(keep=False, reason="zero_std_0.0", keep_when_insufficient=True)
    made = selection(2, chunk=3)
    begun(made)

    outcomes = [made.take(group(position), fallback) for position in (10, 11, 12)]

    assert [outcome.keep for outcome in outcomes] == [False, True, True]
    assert counts(made) == (3, 0, 2, 1, 0)


def test_dropped_groups_are_counted_by_their_reasons() -> None:
    made = selection(1, chunk=4)
    begun(made)
    made.take(group(10), BAD)
    made.take(group(11), Verdict(keep=False, reason="reward_timeout"))
    made.take(group(12), Verdict(keep=False))
    made.take(group(13), GOOD)

    found = made.counts()
    assert {name: count for name, count in found.items() if "/" in name} == {
        "dropped/no_reason": 1,
        "dropped/reward_timeout": 1,
        "dropped/zero_std_1.0": 1,
    }


def test_after_the_last_refill_it_says_what_was_dropped() -> None:
    made = selection(2, chunk=2, most_refills=1)
    for expected in ([10, 11], [12, 13], []):
        assert begun(made) == expected
        for position in expected:
            made.take(group(position), BAD)

    with pytest.raises(DataError, match=r"0 of 2 groups are kept after 4 prompts and 1 refills; 4 .* \(4 zero_std_1.0"):
        raise made.exhausted()


def test_with_a_quorum_the_rest_is_not_waited_for() -> None:
    made = selection(4, chunk=4, enough=3)
    begun(made)
    for position in (10, 11, 13):
        made.take(group(position), GOOD)

    assert made.is_done
    made.leave(group(12, Status.PENDING))
    assert counts(made) == (4, 0, 3, 0, 1)


def entry(position: int, **note: object) -> Entry:
    return Entry(samples=group(position), is_finished=True, note=dict(note) or None)


def test_the_next_attempt_asks_only_what_was_not_answered_and_drops_what_was_dropped() -> None:
    made = selection(3, chunk=3)
    kept, dropped = entry(12, keep=True, reason=None), entry(10, keep=False, reason="zero_std_1.0")

    made.restore([kept, dropped], lambda position: position - 10, is_judged=True)

    assert begun(made) == [11, 13, 14, 15]  # 11 was running when the attempt was killed; 2 of 3 left: 3 more
    assert positions(made.kept) == [12]
    assert made.reasons == {"zero_std_1.0": 1}


def test_a_group_that_was_finished_but_not_judged_is_judged_now() -> None:
    made = selection(2)

    made.restore([entry(10)], lambda position: position - 10, is_judged=True)

    assert begun(made) == [10, 11]


def test_an_unfinished_group_goes_on_from_its_tokens() -> None:
    made = selection(2)
    partial = Entry(samples=group(10, Status.ABORTED), is_finished=False)

    made.restore([partial], lambda position: position - 10, is_judged=False)

    first = made.next()
    assert first is not None
    assert first[0].status == Status.ABORTED


def test_a_handed_over_group_in_the_journal_is_not_begun_twice() -> None:
    made = selection(2, taken=[group(3), group(4)], first=5)

    made.restore([entry(4, keep=True, reason=None)], lambda position: None, is_judged=True)

    assert begun(made) == [3]
    made.take(group(3), GOOD)
    assert counts(made) == (0, 2, 2, 0, 0)


def test_in_a_stream_as_many_prompts_are_under_way_as_its_window_is_wide_whatever_becomes_of_them() -> None:
    made = selection(3, chunk=1, window=2)

    assert begun(made) == [10, 11]
    made.take(group(10), GOOD)
    assert begun(made) == [12]
    made.take(group(12), BAD)
    assert begun(made) == [13]
    made.take(group(11), GOOD)
    assert begun(made) == [14]
    made.take(group(14), GOOD)

    assert made.is_done
    made.leave(group(13, Status.ABORTED))
    assert counts(made) == (5, 0, 3, 1, 1)


def test_a_stream_takes_what_was_handed_over_before_it_asks_anew() -> None:
    made = selection(2, chunk=1, window=2, taken=[group(7), group(8, Status.ABORTED), group(9, Status.ABORTED)])

    assert begun(made) == [7, 8]
    made.take(group(7), GOOD)
    assert begun(made) == [9]
    made.take(group(9), GOOD)

    made.leave(group(8, Status.ABORTED))
    assert counts(made) == (0, 3, 2, 0, 1)


def test_in_a_stream_too_prompts_that_are_all_dropped_come_to_an_end() -> None:
    made = selection(2, chunk=1, window=2, most_refills=5)
    while (asked := made.next()) is not None:
        made.take([Sample(group_index=asked[0].group_index, status=Status.COMPLETED)], BAD)

    with pytest.raises(DataError, match=r"0 of 2 groups are kept after 6 prompts; 6 were dropped \(6 zero_std_1.0\)"):
        raise made.exhausted()
