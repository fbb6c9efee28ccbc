"""Earliest deadline first: a queue that delivers items in the order of their deadlines.

Challenge
    Items are due at different times, and a free consumer should take the one that is due first.

Keys
    Those of a queue with an order, with the deadline in microseconds as rank.

Ordering
    By deadline. Items of the same microsecond come in commit order, and items without a deadline after all others. The
    order is strict through an item's whole life.

Guarantees
    Those of the queue and of every layer over it: this only adds an order, and overrides nothing.

Limits
    Nothing happens when a deadline passes: the item is still the first one. A time to live removes it.

Source
    Apache Qpid, "Queue Implementation" (a new list type by its order); Liu and Layland, 1973, for the rule.

>>> import fdbqueue
>>> from fdbqueue.layers import EarliestDeadline, Leases
>>> with fdbqueue.open("memory:") as db:
...     flights = Leases(fdbqueue.Queue("flights", codec="str", order=EarliestDeadline()))
...     for value, deadline in (("to Rome", 1800000900.5), ("to Oslo", 1800000300.0)):
...         position = flights.enqueue(db, value, headers={"deadline": deadline})
...     lease = flights.lease(db)
...     (lease.value, lease.position.rank)
('to Oslo', 1800000300000000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdbqueue.stored.order import MAX_RANK

from ..leases.times import not_negative

DEADLINE = "deadline"


class EarliestDeadline:
    """An `fdbqueue.Order` by the header "deadline", in seconds since 1970."""

    name = "earliest deadline"

    def __repr__(self) -> str:
        return "EarliestDeadline()"

    def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
        """Return the deadline in microseconds, or the largest rank if there is none.

        Raises:
            ValueError: the header is not such a number.
        """
        if headers is None or DEADLINE not in headers:
            return MAX_RANK
        deadline = headers[DEADLINE]
        if not isinstance(deadline, int | float):
            raise ValueError(f"A deadline is a number of seconds since 1970, not {deadline!r}.")
        return not_negative(deadline, DEADLINE)
