"""Levels from priorities: those of AMQP and JMS, reversed at the boundary, and plain levels."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from fdbqueue.layers.common.levels import AmqpLevels, Levels, levels_named

AMQP_RANKS = {
    # of the priorities  0  1  2  3  4  5  6  7  8  9
    1: (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    2: (1, 1, 1, 1, 1, 0, 0, 0, 0, 0),
    3: (2, 2, 2, 2, 1, 0, 0, 0, 0, 0),
    4: (3, 3, 3, 3, 2, 1, 0, 0, 0, 0),
    5: (4, 4, 4, 3, 2, 1, 0, 0, 0, 0),
    6: (5, 5, 5, 4, 3, 2, 1, 0, 0, 0),
    7: (6, 6, 5, 4, 3, 2, 1, 0, 0, 0),
    8: (7, 7, 6, 5, 4, 3, 2, 1, 0, 0),
    9: (8, 7, 6, 5, 4, 3, 2, 1, 0, 0),
    10: (9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
}


@pytest.mark.parametrize("count", AMQP_RANKS)
def test_amqp_priorities_have_the_ranks_of_the_table(count: int) -> None:
    levels = AmqpLevels(count)
    assert tuple(map(levels.rank_of, range(10))) == AMQP_RANKS[count]


@pytest.mark.parametrize("count", range(1, 11))
def test_amqp_priorities_are_distinct_where_the_specification_says_so(count: int) -> None:
    lowest, highest = 5 - math.ceil(count / 2), 4 + math.floor(count / 2)
    rank = AmqpLevels(count).rank_of

    assert {rank(priority) for priority in range(lowest + 1)} == {count - 1}
    assert {rank(priority) for priority in range(highest, 10)} == {0}
    distinct = [rank(priority) for priority in range(lowest, highest + 1)]
    assert distinct == list(range(count))[::-1]


@pytest.mark.parametrize("count", range(1, 11))
def test_amqp_priorities_have_the_sub_queues_that_qpids_brokers_give_them(count: int) -> None:
    rank = AmqpLevels(count).rank_of
    first = 5 - (count + 1) // 2  # what both brokers subtract; level 0 is their lowest
    assert [count - 1 - rank(priority) for priority in range(10)] == [
        min(max(priority - first, 0), count - 1) for priority in range(10)
    ]


@pytest.mark.parametrize(("fewer", "more"), list(itertools.combinations(range(1, 11), 2)))
def test_more_levels_distinguish_all_priorities_that_fewer_do(fewer: int, more: int) -> None:
    few, many = AmqpLevels(fewer).rank_of, AmqpLevels(more).rank_of
    for one, other in itertools.combinations(range(10), 2):
        assert few(one) == few(other) or many(one) > many(other)


@pytest.mark.parametrize("count", range(2, 11))
def test_expedited_jms_priorities_come_before_normal_ones(count: int) -> None:
    rank = AmqpLevels(count).rank_of
    assert max(rank(priority) for priority in range(5, 10)) < min(rank(priority) for priority in range(5))


def test_plain_levels_are_their_own_ranks() -> None:
    assert [Levels(4).rank_of(priority) for priority in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("levels", "value", "headers", "rank"),
    [
        (AmqpLevels(10), None, None, 5),
        (AmqpLevels(10), None, {"priority": 9}, 0),
        (AmqpLevels(2, default=9), None, {"other": 1}, 0),
        (AmqpLevels(10, of=int), "7", None, 2),
        (AmqpLevels(10, of=int), "7", {"priority": 0}, 9),
        (Levels(3), None, None, 2),
        (Levels(3, default=1), None, {}, 1),
        (Levels(3, of=len), "xx", None, 2),
    ],
)
def test_an_items_priority_is_its_headers_or_its_values_or_the_default(
    levels: Levels, value: Any, headers: dict[str, Any] | None, rank: int
) -> None:
    assert levels.rank(value, headers) == rank


@pytest.mark.parametrize("priority", [-1, 10, 4.0, "4", None, True])
@pytest.mark.parametrize("levels", [Levels(10), AmqpLevels(3)])
def test_a_bad_priority_is_refused(levels: Levels, priority: Any) -> None:
    with pytest.raises(ValueError, match="integer from 0 to 9, not"):
        levels.rank_of(priority)


@pytest.mark.parametrize("levels", [Levels(1), Levels(256), AmqpLevels(7)])
def test_levels_are_found_by_their_name(levels: Levels) -> None:
    found = levels_named(levels.name)
    assert (type(found), found and found.count) == (type(levels), levels.count)


@pytest.mark.parametrize("name", ["", "levels", "levels/", "levels/x", "other/3", "earliest deadline"])
def test_a_name_of_other_orders_names_no_levels(name: str) -> None:
    assert levels_named(name) is None
