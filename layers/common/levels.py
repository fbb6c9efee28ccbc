"""Levels: orders that give an item one of a few ranks, by its priority.

Inside the library a smaller rank is always sooner. `Levels` takes priorities as such integers. `AmqpLevels` takes those
of AMQP and JMS, 0 to 9 where larger is higher, and reverses them at this boundary.

Source: AMQP 0-10, message class, rule "priority-level-implementation", for n distinct priorities. Priorities 0 to 5 -
ceiling(n/2) are the same and the lowest. 4 + floor(n/2) and above are the same and the highest. Those between are
distinct. By rule "min-priority-levels" 0 and 9 always are distinct, with two levels or more.
(`specs/amqp.0-10-qpid-errata.xml` in Qpid's repository, whose brokers in Java and C++ compute the same.) JMS 2.0,
3.4.10: there are ten priorities, and 4 is the default. 0 to 4 are gradations of normal and 5 to 9 of expedited
priority.

>>> from fdbqueue.layers import AmqpLevels, Levels
>>> [AmqpLevels(3).rank_of(priority) for priority in range(10)]
[2, 2, 2, 2, 1, 0, 0, 0, 0, 0]
>>> [Levels(3).rank_of(priority) for priority in range(3)]
[0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fdbqueue import Queue
from fdbqueue.stored.counters import COUNTED_RANKS
from fdbqueue.stored.items import with_header
from fdbqueue.stored.order import PRIORITY

__all__ = ["PRIORITY", "AmqpLevels", "Levels", "levels_named", "with_priority"]

MAX_LEVELS = COUNTED_RANKS
AMQP_PRIORITIES = 10
AMQP_DEFAULT = 4


class Levels:
    """Priorities 0, the soonest, to `count` - 1. An `fdbqueue.Order`.

    Args:
        count: the number of levels, 1 to 256.
        default: the priority of an item without one; the last by default.
        of: returns the priority of a value, for items without the header.

    Raises:
        TypeError, ValueError: an argument is none of these.
    """

    def __init__(self, count: int = 10, *, default: int | None = None, of: Callable[[Any], int] | None = None) -> None:
        _check_count(count)
        if not 1 <= count <= MAX_LEVELS:
            raise ValueError(f"A priority queue has 1 to {MAX_LEVELS} levels, not {count}.")
        if of is not None and not callable(of):
            raise TypeError(f"of is a function from a value to its priority, not {of!r}.")
        self.count = count
        self._of = of
        self._default = self.rank_of(count - 1 if default is None else default)

    @property
    def name(self) -> str:
        """The name of this order, which is stored with the queue."""
        return f"levels/{self.count}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count})"

    def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
        """Return the rank of an item by its header or its value.

        Raises:
            ValueError: its priority is not one of this order.
        """
        if headers is not None and PRIORITY in headers:
            return self.rank_of(headers[PRIORITY])
        return self._default if self._of is None else self.rank_of(self._of(value))

    def rank_of(self, priority: int) -> int:
        """Return the rank of a priority.

        Raises:
            ValueError: it is not one of this order.
        """
        return _checked(priority, self.count)


class AmqpLevels(Levels):
    """Priorities 0 to 9 as in AMQP and JMS, larger is higher. Fewer levels distinguish fewer of them.

    Args:
        count: the number of levels, 1 to 10.
        default: the priority of an item without one.
        of: returns the priority of a value, for items without the header.
    """

    def __init__(
        self, count: int = AMQP_PRIORITIES, *, default: int = AMQP_DEFAULT, of: Callable[[Any], int] | None = None
    ) -> None:
        _check_count(count)
        if not 1 <= count <= AMQP_PRIORITIES:
            raise ValueError(f"AMQP tells 1 to {AMQP_PRIORITIES} priorities apart, not {count}.")
        self._highest = 4 + count // 2
        self._lowest = 5 - (count + 1) // 2
        super().__init__(count, default=default, of=of)

    @property
    def name(self) -> str:
        """The name of this order, which is stored with the queue."""
        return f"amqp/{self.count}"

    def rank_of(self, priority: int) -> int:
        """Return the rank of a priority.

        Raises:
            ValueError: it is not from 0 to 9.
        """
        return self._highest - min(self._highest, max(self._lowest, _checked(priority, AMQP_PRIORITIES)))


def with_priority(queue: Queue, headers: Mapping[str, object] | None, priority: int | None) -> Mapping[str, Any] | None:
    """Return headers with a priority; unchanged if it is None.

    Raises:
        ValueError: the queue has no such priority, or no levels at all.
    """
    if priority is None:
        return headers
    if not isinstance(queue.order, Levels):
        raise ValueError(
            f"{queue!r} has no levels, and so no priorities. Use the leases of a PriorityQueue, or leave priority out."
        )
    queue.order.rank_of(priority)
    return with_header(headers, PRIORITY, priority)


def levels_named(name: str) -> Levels | None:
    """Return the levels that the name of an order describes; None if it describes another order.

    >>> levels_named("amqp/5"), levels_named("tens")
    (AmqpLevels(5), None)
    """
    kind, _, count = name.partition("/")
    if not count.isdecimal():
        return None
    return AmqpLevels(int(count)) if kind == "amqp" else Levels(int(count)) if kind == "levels" else None


def _check_count(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"count is the number of levels, an integer, not {count!r}.")


def _checked(priority: object, count: int) -> int:
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority < count:
        return priority
    raise ValueError(f"A priority of this queue is an integer from 0 to {count - 1}, not {priority!r}.")
