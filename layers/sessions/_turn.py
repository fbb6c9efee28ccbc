"""A turn of a session: its leased pointer, as a transaction reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdbqueue import FormatError
from fdbqueue.lowlevel import Notes, Steps, Transaction, finished, notes_of, started

from ._records import Pointer, Record, pointer_of, record_of
from ._session import Head, Session

if TYPE_CHECKING:
    from ._line import Line


@dataclass(slots=True)
class Turn:
    """A leased pointer, as a transaction that ends its lease has read it."""

    packed: bytes
    """The pointer's packed position in the line."""
    notes: Notes
    pointer: Pointer
    record: Record
    session: Session


def read_turn(
    tr: Transaction, line: Line, packed: bytes, session: Session, *, limit: int
) -> Steps[tuple[Turn | None, Head]]:
    """Read a leased pointer, its session's record and its first items, in parallel; None if it is not leased.

    Args:
        limit: how many items; 0: it does not look at them.

    *Conflicts:* with a transaction that ends or extends this lease, and with what an operator does to the session.
    """
    leased, recorded = tr.get(line.shards.at(packed).leased.key(packed)), tr.get(session.record_key)
    looking = started(session.look(tr, limit=limit) if limit else finished(Head()))
    value = yield leased
    record = record_of((yield recorded))
    head = yield from looking
    if not value.present() or record is None:
        return None, head
    stored = bytes(value)
    try:
        return Turn(packed, notes_of(stored), pointer_of(stored), record, session), head
    except FormatError:
        return None, head
