"""Arrivals: what became available, told to those who keep a pointer into the queue.

Who remembers how far it has looked (`layers/subscriptions`) must learn of items that come to stand behind that
point: they are given back, fall due, have a smaller rank, or a slow producer brings them. Once a queue has such
readers, every transaction that makes items available also notes where, in the order of commits::

    ("arrival", versionstamp, first, last)      these packed positions, and perhaps others between them

A note is a blind write under a key of its own, so that nobody conflicts. Who does not know of the readers yet, since
it read the queue before they came, notes nothing; it is found out: what is enqueued is counted, and what is enqueued
and noted is counted too. A sole subscription (`layers/subscriptions`) reads at the head, and wants nothing noted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import strinc
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.layout import Layout
from fdbqueue.stats import count

Span: TypeAlias = tuple[bytes, bytes]
"""The packed positions of a first and a last item."""

MAX_SPANS = 16
"""More spans of one transaction than these are noted as one, from the first to the last of all."""
_WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"  # the special keys of a transaction's own
_STAMPED = b"\x33"  # type code of a versionstamp in a tuple
_NO_STAMP = b"\xff" * 10 + b"\x00\x00"


def announce(tr: Transaction, layout: Layout, spans: Iterable[Span], *, enqueued: int = 0) -> None:
    """Note that items become available.

    Args:
        spans: where.
        enqueued: how many items this transaction enqueues of which it tells so, delayed ones included.

    *Conflicts:* none of one's own. The write conflict range is on keys that nobody writes, one for each item's place:
    whoever takes an item reads those in front of it, and so conflicts with what comes to stand in front, but not with
    what others take there.
    """
    noted = sorted(spans)
    if len(noted) > MAX_SPANS:
        noted = [(noted[0][0], max(last for _, last in noted))]
    prefix = layout.arrivals.key() + _STAMPED
    for first, last in noted:
        # Both ends stand in the key, so that several notes of one transaction, which share its stamp, stay apart.
        key = prefix + _NO_STAMP + _as_element(first) + _as_element(last)
        tr.set_versionstamped_key(key + struct.pack("<I", len(prefix)), b"")
        tr.add_write_conflict_range(layout.arriving + first, layout.arriving + last + b"\x00")
    if enqueued:
        count(tr, layout, announced=enqueued)
    else:
        count(tr, layout, returned=1)  # who waits for items watches this, and the enqueued ones


def wants_arrivals(stored: Any) -> tuple[bool, str | None]:
    """Say by what was read of the subscribed key whether arrivals are to be noted; else who is the sole subscription.

    Args:
        stored: the value that was read; None: it was not, since nobody is subscribed.
    """
    if stored is None or not stored.present():
        return False, None
    name = bytes(stored).decode("utf-8", "replace")
    return not name, name or None


def announces(tr: Transaction, layout: Layout) -> Steps[bool]:
    """Say whether this transaction itself has announced something, so that it can't read arrivals any more.

    Its own notes have no versionstamps yet. To read where they might stand fails, and then its commit fails too (1036,
    accessed_unreadable); its own write conflict ranges can be read.
    """
    own = _WRITE_CONFLICTS + layout.arriving
    return bool((yield from rows(tr.snapshot, own, strinc(own), limit=1)))


def arrivals_since(layout: Layout, version: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the notes that were committed after a version."""
    prefix: bytes = layout.arrivals.key()
    return prefix + _STAMPED + (version + 1).to_bytes(8, "big"), prefix + _STAMPED + b"\xff" * 10


def arrivals_until(layout: Layout, version: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the notes that were committed up to a version."""
    prefix: bytes = layout.arrivals.key()
    return prefix + _STAMPED, prefix + _STAMPED + (version + 1).to_bytes(8, "big")


def span_of(layout: Layout, key: bytes) -> Span:
    """Return what the note under a key tells of."""
    _, first, last = layout.arrivals.unpack(key)
    return first, last


def _as_element(packed: bytes) -> bytes:
    return b"\x01%b\x00" % packed.replace(b"\x00", b"\x00\xff")
