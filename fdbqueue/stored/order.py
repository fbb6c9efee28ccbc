"""Orders: turn a queue into one that is not first in, first out.

An order gives each item a rank when it is enqueued. Items are sorted by rank, smaller first. Items of one rank keep the
order of their enqueues. A queue is then an ordered list of standard queues, one per rank. One range read runs from the
last item of a rank into the first item of the next.

Nothing else of a queue changes. A consumer that takes, leases, gives back or browses items need not know the order,
since the keys contain it. A new kind of queue is a new order, and nothing more (docs/adr/0060).

Source: Apache Qpid, "Queue Implementation" design (a list type overrides the order of its entries).

>>> import fdbqueue
>>> class ShortestFirst:
...     name = "shortest first"
...     def rank(self, value, headers):
...         return len(value)
>>> with fdbqueue.open("memory:") as db:
...     words = fdbqueue.Queue("words", codec="str", order=ShortestFirst())
...     report = words.enqueue_many(db, ["three", "one", "eleven", "two"])
...     [item.value for item in words.browse(db)]
['one', 'two', 'three', 'eleven']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

MAX_NAME_BYTES = 100
MAX_INDEX = (1 << 63) - 1
"""The highest index that an item may have. No enqueue comes near it, and a file of an export may not go beyond it."""
MAX_RANK = (1 << 63) - 1
PRIORITY = "priority"
"""The header with an item's priority, in a queue whose order has priorities."""


class Order(Protocol):
    """The order that a queue sorts its items by."""

    @property
    def name(self) -> str:
        """The order's name, at most 100 bytes. The queue stores it, and refuses an order with another name."""

    def rank(self, value: object, headers: Mapping[str, object] | None) -> int:
        """Return an item's rank, 0 or more: smaller is sooner. It is called once, at the item's enqueue.

        Raises:
            ValueError: the item has no place in this order. Nothing is enqueued then.
        """


def rank_in(order: Order, value: object, headers: Mapping[str, object] | None) -> int:
    """Return an item's rank in an order.

    Raises:
        ValueError: the order has no rank for the item.
    """
    given: object = order.rank(value, headers)  # from code that is not ours
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_RANK:
        return given
    raise ValueError(f"A rank is an integer from 0 to {MAX_RANK:,}; the order {order.name!r} gave {given!r}.")


def check_order(order: Order) -> None:
    """Refuse a value that is no order, and an order with a name that the queue can't store.

    Raises:
        TypeError: it is a class, or has no `name` and `rank`.
        ValueError: the name is empty or too long.
    """
    if isinstance(order, type):
        raise TypeError(f"order is an object, not the class {order.__name__}: give order={order.__name__}().")
    if not callable(getattr(order, "rank", None)) or not isinstance(getattr(order, "name", None), str):
        raise TypeError(
            f"order is an object with a name and rank(value, headers), such as EarliestDeadline(), not {order!r}."
            " Leave it out for first in, first out."
        )
    if not 1 <= len(order.name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"The name of an order has 1 to {MAX_NAME_BYTES} bytes, not {order.name!r}.")
