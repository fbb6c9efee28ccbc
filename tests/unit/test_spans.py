"""Spans of a queue that are yet to be looked at, against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue.layers.subscriptions.head import END, MAX_SPANS, Span, behind, everything, few, joined

points = st.integers(0, 200).map(lambda number: bytes([number]))
ranges = st.tuples(points, points).map(lambda ends: (min(ends), max(ends) + b"\x00"))


def members(spans: list[Span]) -> set[int]:
    return {number for number in range(256) for begin, end in spans if begin <= bytes([number]) < end}


@given(spans=st.lists(ranges, max_size=100))
def test_joined_spans_have_the_same_members_in_order_and_apart(spans: list[Span]) -> None:
    result = joined(spans)
    assert members(result) == members(spans)
    assert all(one[1] < other[0] for one, other in pairwise(result))


@given(spans=st.lists(ranges, max_size=20), point=points)
def test_the_spans_behind_a_point_are_left(spans: list[Span], point: bytes) -> None:
    assert members(behind(joined(spans), point)) == {one for one in members(spans) if one >= point[0]}


@given(numbers=st.sets(st.integers(0, 199), max_size=150))
@example(numbers=set(range(200)))
@example(numbers=set(range(2 * MAX_SPANS)))
@example(numbers=set(range(2 * MAX_SPANS - 2)))
def test_few_spans_have_all_of_many_and_the_same_end(numbers: set[int]) -> None:
    many = joined([(bytes([number]), bytes([number]) + b"\x00") for number in numbers if number % 2] + [(b"\xc8", END)])
    result = few(many)
    assert len(result) <= MAX_SPANS
    assert members(result) >= members(many)
    assert result[-1] == many[-1]
    assert (result == many) == (len(many) <= MAX_SPANS)
    assert result == joined(result)


def test_spans_that_touch_are_one() -> None:
    assert joined([(b"b", b"c"), (b"a", b"b"), (b"d", b"e")]) == [(b"a", b"c"), (b"d", b"e")]


def test_a_new_pointer_covers_the_whole_queue() -> None:
    assert behind(everything(), b"") == [(b"", END)]
