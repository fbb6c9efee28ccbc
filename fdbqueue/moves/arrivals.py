"""Arrivals: records of items that became available, for readers that keep a pointer into the queue.

A reader that remembers how far it has looked (`layers/subscriptions`) must learn of items that appear before that
point. Items appear there when they are given back, fall due or have a smaller rank, or when a slow producer commits.
Once a queue has such readers, every transaction that makes items available also notes where, in commit order::

    ("arrival", versionstamp, first, last)      these packed positions, and perhaps others between them

A note is a blind write under its own key, so notes never conflict. A transaction that read the queue before the first
reader came notes nothing. Readers detect this: the library counts the enqueued items, and separately those that were
both enqueued and noted. A sole subscription (`layers/subscriptions`) reads at the head and needs no notes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import within
from fdbqueue.engine.steps import rows
from fdbqueue.stored.counters import count
from fdbqueue.stored.layout import Layout

Span: TypeAlias = tuple[bytes, bytes]
"""The packed positions of a first and a last item."""

MAX_SPANS = 16
"""A transaction with more spans than these notes a single span, from its first to its last position."""
_WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"  # the transaction's own special keys
_STAMPED = b"\x33"  # type code of a versionstamp in a tuple
_NO_STAMP = b"\xff" * 10 + b"\x00\x00"


def announce(tr: Transaction, layout: Layout, spans: Iterable[Span], *, enqueued: int = 0) -> None:
    """Note that items become available.

    Args:
        spans: the positions of the items.
        enqueued: how many of the items this transaction enqueues, delayed ones included.

    *Conflicts:* none for this transaction. It adds a write conflict range, one key for each item's place; no
    transaction writes those keys. A transaction that takes an item reads the places ahead of it. It therefore conflicts
    with items that arrive there, and never with other transactions that take items there.
    """
    noted = sorted(spans)
    if len(noted) > MAX_SPANS:
        noted = [(noted[0][0], max(last for _, last in noted))]
    prefix = layout.arrivals.key() + _STAMPED
    for first, last in noted:
        # The key holds both ends. Several notes of one transaction share its stamp, and the ends keep their keys apart.
        key = prefix + _NO_STAMP + _as_element(first) + _as_element(last)
        tr.set_versionstamped_key(key + struct.pack("<I", len(prefix)), b"")
        tr.add_write_conflict_range(layout.arriving + first, layout.arriving + last + b"\x00")
    if enqueued:
        count(tr, layout, announced=enqueued)
    else:
        count(tr, layout, returned=1)  # waiting consumers watch this counter and the one of enqueued items


def wants_arrivals(stored: Any) -> tuple[bool, str | None]:
    """Return whether arrivals must be noted, and otherwise the name of the sole subscription, if there is one.

    Args:
        stored: the value that was read of the subscribed key; None if it was not read, since there is no subscription.
    """
    if stored is None or not stored.present():
        return False, None
    name = bytes(stored).decode("utf-8", "replace")
    return not name, name or None


async def announces(tr: Transaction, layout: Layout) -> bool:
    """Return whether this transaction has noted arrivals itself, so that it can no longer read arrivals.

    Its own notes have no versionstamps yet. A read of the range that may hold them fails, and then its commit fails too
    (1036, accessed_unreadable). Its own write conflict ranges can be read.
    """
    own = within(_WRITE_CONFLICTS + layout.arriving)
    return bool(await rows(tr.snapshot, *own, limit=1))


def arrivals_since(layout: Layout, version: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the notes that were committed after a version."""
    prefix: bytes = layout.arrivals.key()
    return prefix + _STAMPED + (version + 1).to_bytes(8, "big"), prefix + _STAMPED + b"\xff" * 10


def arrivals_until(layout: Layout, version: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the notes that were committed up to a version."""
    prefix: bytes = layout.arrivals.key()
    return prefix + _STAMPED, prefix + _STAMPED + (version + 1).to_bytes(8, "big")


def span_of(layout: Layout, key: bytes) -> Span:
    """Return the span that the note under a key names; one without items if the key is foreign."""
    _, first, last = layout.parts("arrivals", key) or (None, b"", b"")
    return first, last


def _as_element(packed: bytes) -> bytes:
    return b"\x01%b\x00" % packed.replace(b"\x00", b"\x00\xff")
