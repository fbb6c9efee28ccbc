"""Facts: the values of an item that a selector can use in addition to its headers.

========================  ==============================================================================
``JMSMessageID``          ``ID:`` and its position, as ``Position.text`` writes it
``JMSPriority``           its header "priority", as it was sent; 4 without one
``JMSTimestamp``          time of its enqueue, in milliseconds since 1970; NULL if that is unknown
``JMSExpiration``         time at which it expires, in milliseconds since 1970; 0: never
``JMSRedelivered``        whether it was leased before
``JMSXDeliveryCount``     number of the next delivery, from 1
``fdbqueue_index``        its index
``fdbqueue_rank``         its rank; NULL in a queue without ranks
========================  ==============================================================================

A selector can't read a header with one of these names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue import Position
from fdbqueue.lowlevel import Layout, Notes, headers_of, notes_of

from ..common.levels import PRIORITY

NORMAL_PRIORITY = 4
"""Priority of an item whose sender gave none, as in JMS."""


class Facts:
    """The facts of one available item, each computed on use."""

    __slots__ = ("_layout", "key", "stored")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.key = b""
        """The item's key."""
        self.stored = b""
        """The item's stored value."""

    @property
    def position(self) -> Position:
        """The item's position."""
        return self._layout.position_of(self.key)

    @property
    def notes(self) -> Notes:
        """The item's notes."""
        return notes_of(self.stored)


def _rank(facts: Facts) -> int | None:
    return facts.position.rank


def _priority(facts: Facts) -> Any:
    return headers_of(facts.stored).get(PRIORITY, NORMAL_PRIORITY)


def _message_id(facts: Facts) -> str:
    return f"ID:{facts.position.text}"


FACTS: dict[str, Callable[[Facts], Any]] = {
    "JMSMessageID": _message_id,
    "JMSPriority": _priority,
    "JMSTimestamp": lambda facts: facts.notes.enqueued_at_us // 1_000 or None,
    "JMSExpiration": lambda facts: facts.notes.ttl_at_us // 1_000,
    "JMSRedelivered": lambda facts: facts.notes.attempt > 0,
    "JMSXDeliveryCount": lambda facts: facts.notes.attempt + 1,
    "fdbqueue_index": lambda facts: facts.position.index,
    "fdbqueue_rank": _rank,
}
