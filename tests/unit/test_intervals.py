"""Sets of keys as intervals, held against plain sets."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine.embedded.client.write_buffer import Intervals, Range

KEYS = [bytes([number]) for number in range(12)]
MOST = bytes([len(KEYS)])

_ends = st.tuples(st.sampled_from([*KEYS, MOST]), st.sampled_from([*KEYS, MOST]))
_changes = st.lists(st.tuples(st.booleans(), _ends), max_size=12)


def made(changes: list[tuple[bool, Range]]) -> tuple[Intervals, set[bytes]]:
    """Return what comes of adding (True) and removing ranges, as intervals and as a set of `KEYS`."""
    intervals, keys = Intervals(), set[bytes]()
    for add, (begin, end) in changes:
        if add:
            intervals.add(begin, end)
            keys |= within([(begin, end)])
        else:
            intervals.remove(begin, end)
            keys -= within([(begin, end)])
    return intervals, keys


def within(ranges: Iterable[Range]) -> set[bytes]:
    """Return those of `KEYS` that lie in `ranges`."""
    return {key for begin, end in ranges for key in KEYS if begin <= key < end}


@given(_changes)
def test_changes_leave_sorted_ranges_that_do_not_touch(changes: list[tuple[bool, Range]]) -> None:
    intervals, keys = made(changes)
    assert within(intervals) == keys
    assert bool(intervals) == bool(keys)
    edges = [edge for span in intervals for edge in span]
    assert edges == sorted(set(edges))


@given(_changes, _ends)
def test_lookups_agree_with_those_of_a_set(changes: list[tuple[bool, Range]], ends: Range) -> None:
    intervals, keys = made(changes)
    begin, end = min(ends), max(ends)
    inside = within([(begin, end)])
    assert all((key in intervals) == (key in keys) for key in KEYS)
    assert within(intervals.clip(begin, end)) == keys & inside
    assert within(intervals.gaps(begin, end)) == inside - keys
    if begin < end:
        assert intervals.meets(begin, end) == bool(keys & inside)


@given(_changes, st.sampled_from(KEYS))
def test_the_ends_of_an_interval_are_found_from_within(changes: list[tuple[bool, Range]], key: bytes) -> None:
    intervals, keys = made(changes)
    end = intervals.end_of(key)
    assert within([(key, end)]) <= keys
    assert end not in keys
    begin = intervals.begin_of(key)
    assert within([(begin, key)]) <= keys
    assert begin == KEYS[0] or KEYS[KEYS.index(begin) - 1] not in keys
