"""Facts: what a selector can ask of an item beside its headers.

========================  ==============================================================================
``JMSMessageID``          ``ID:`` and its position, as ``Position.text`` writes it
``JMSPriority``           its header "priority", as it was sent; 4 without one
``JMSTimestamp``          when it was enqueued, in milliseconds since 1970; NULL if that was not noted
``JMSExpiration``         when its life ends, in the same; 0: never
``JMSRedelivered``        whether it was leased before
``JMSXDeliveryCount``     the how-many-eth delivery the next one is, from 1
``fdbqueue_index``        its index
``fdbqueue_rank``         its rank; NULL in a queue without ranks
========================  ==============================================================================

A header of the same name can't be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue import Position
from fdbqueue.lowlevel import Layout, Notes, headers_of, notes_of

from ..common._levels import PRIORITY

NORMAL_PRIORITY = 4
"""Of an item whose sender named none, as JMS has it."""


class Facts:
    """What is known of one available item, looked up when it is asked for."""

    __slots__ = ("_layout", "key", "stored")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.key = b""
        """Of the item that is asked about."""
        self.stored = b""
        """What is stored for it."""

    @property
    def position(self) -> Position:
        """Its position."""
        return self._layout.position_of(self.key)

    @property
    def notes(self) -> Notes:
        """Its notes."""
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
