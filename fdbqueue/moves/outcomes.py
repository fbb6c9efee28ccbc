"""Outcomes: what became of an item, for a caller that waits for its end, and its follow-ups.

An item that has a completion has a record under ``("completion", index, random)`` from its enqueue on. The transaction
that ends the item writes the outcome there, and a timer that removes it later. So a record never outlives its item
unnoticed: an item that is still in the queue has a pending record, and an ended item has an outcome or no record.

A follow-up is an item that is in its queue already, delayed and *held*. The transaction that ends the item before it
writes a timer that is due at once. This is a blind write: it conflicts with nothing, and a second one changes nothing.
The next consumer of that queue fires the timer, which makes the follow-up available, or removes it.

An item without these pays nothing: its notes, which are read anyway, say that there is nothing to do.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import value_of
from fdbqueue.errors import CodecError, ItemTooLarge
from fdbqueue.stored.counters import count
from fdbqueue.stored.items import Micros, Notes
from fdbqueue.stored.layout import RESULT, Layout
from fdbqueue.stored.own_values import decoded

MAX_RESULT_BYTES = 90_000
"""The largest encoded result. It is stored in one value."""
PENDING = "pending"
DONE, DEAD, EXPIRED, DELETED, CANCELLED = "done", "dead", "expired", "deleted", "cancelled"


class OutcomeRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The stored record of an item that has a completion."""

    how: str = msgspec.field(default=PENDING, name="h")
    """"pending", or how the item ended: "done", "dead", "expired", "deleted" or "cancelled"."""
    result: bytes = msgspec.field(default=b"", name="r")
    """The result in MessagePack; b"" for None."""
    error: str = msgspec.field(default="", name="m")
    """The last error of the item."""
    ended_at_us: Micros = msgspec.field(default=0, name="q")
    until_us: Micros = msgspec.field(default=0, name="x")
    """When the record is removed. While it is pending: when the item's life ends, 0 for never."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OutcomeRecord).decode


def encode_result(result: object) -> bytes:
    """Encode a handler's result.

    Raises:
        CodecError: MessagePack can't hold it.
        ItemTooLarge: it is over `MAX_RESULT_BYTES`.
    """
    if result is None:
        return b""
    try:
        packed = _encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"A result must be what MessagePack can hold: {error}.") from error
    if len(packed) > MAX_RESULT_BYTES:
        raise ItemTooLarge(
            f"A result of {len(packed):,} bytes is over the limit of {MAX_RESULT_BYTES:,}. Store it elsewhere, under"
            " keys of your own or in a file, and return where it is."
        )
    return packed


def read_record(layout: Layout, key: bytes, stored: bytes) -> OutcomeRecord:
    """Return the record that is stored under a key.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return decoded(layout, key, stored, _decode)


def encode_record(record: OutcomeRecord) -> bytes:
    """Return the bytes that store an item's outcome."""
    return _encode(record)


def begin(tr: Transaction, layout: Layout, packed: bytes, notes: Notes) -> None:
    """Write the pending record of an item that enters the queue, for the first time or again."""
    if notes.keep_s:
        tr.set(layout.completions.key(packed), encode_record(OutcomeRecord(until_us=notes.ttl_at_us)))


async def reopen(tr: Transaction, layout: Layout, packed: bytes, notes: Notes) -> None:
    """Make the record of an item pending again that comes back to the queue after its end."""
    if notes.keep_s:
        key = layout.completions.key(packed)
        stored = await value_of(tr.get(key))
        if stored.present():
            record = read_record(layout, key, bytes(stored))
            if record.how != PENDING:
                remove(tr, layout, packed, record.until_us)
        begin(tr, layout, packed, notes)


def remove(tr: Transaction, layout: Layout, packed: bytes, until_us: int) -> None:
    """Remove an item's outcome and its timer. Blind writes."""
    tr.clear(layout.completions.key(packed))
    tr.clear(layout.timer_key(until_us, packed, RESULT))
    count(tr, layout, outcomes=-1)


def pull(tr: Transaction, follow_ups: tuple[tuple[bytes, bytes], ...], kind: str) -> None:
    """Write the timers that release held follow-ups, or drop them, and wake consumers that wait.

    The timers are due at time 0, so that no clock delays them.
    """
    for prefix, packed in follow_ups:
        layout = _layout_of(prefix)
        tr.set(layout.timer_key(0, packed, kind), b"")
        count(tr, layout, returned=1)  # waiting consumers watch this counter


@lru_cache(maxsize=64)
def _layout_of(prefix: bytes) -> Layout:
    return Layout(Subspace(rawPrefix=prefix))
