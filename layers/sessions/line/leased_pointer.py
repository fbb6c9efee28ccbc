"""A turn of a session: its leased pointer, as a transaction reads it, and the items that its consumer has begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fdbqueue import FormatError
from fdbqueue.engine.steps import finished, value_of
from fdbqueue.lowlevel import Notes, Transaction, notes_of, rows, started

from ..session.lease import Begun
from ..session.records import WAKER, SessionPointer, SessionRecord, pointer_of
from ..session.session import Session, SessionHead

if TYPE_CHECKING:
    from .line import Line


@dataclass(slots=True)
class Turn:
    """A leased pointer, as a transaction that ends its lease has read it."""

    packed: bytes
    """The pointer's packed position in the line."""
    notes: Notes
    pointer: SessionPointer
    record: SessionRecord
    session: Session

    @property
    def is_unnumbered(self) -> bool:
        """Whether its slot has no entry: it is that of a serial session, or the waker."""
        return self.pointer.slot in (b"", WAKER)


class Compared(NamedTuple):
    """What became of the items that a consumer has begun."""

    acked: int
    """How many are acked already."""
    rows: list[tuple[bytes, bytes]]
    """The keys and stored bytes of those behind them, up to the first that was changed or removed."""
    changed: Begun | None
    """The first item that was changed or removed; None: none was."""


async def read_turn(
    tr: Transaction, line: Line, packed: bytes, session: Session, *, limit: int
) -> tuple[Turn | None, SessionHead]:
    """Read a leased pointer, its session's record and its first items, in parallel; None if it is not leased.

    Args:
        limit: how many items; 0: it does not look at them.

    *Conflicts:* with a transaction that ends or extends this lease, and with what an operator does to the session.
    """
    leased = tr.get(line.layout.leased.key(packed))
    recorded: Any = tr.get(session.record_key)
    looking = started(session.look(tr, limit=limit) if limit else finished(SessionHead()))
    value = await value_of(leased)  # so that callers can start several such reads before one of them goes on to write
    # As in `fdbqueue.engine.steps.rows`: a value that is there already need not resume every caller in between.
    record = session.record_in(
        recorded.wait() if getattr(recorded, "comes_at_once", False) else await value_of(recorded)
    )
    head = await looking
    if not value.present() or record is None:
        return None, head
    stored = bytes(value)
    try:
        return Turn(packed, notes_of(stored), pointer_of(stored), record, session), head
    except FormatError:
        return None, head


async def look_at_begun(
    tr: Transaction, turn: Turn, begun: Sequence[Begun], head: SessionHead, *, known: bytes = b""
) -> Compared:
    """Compare the items that a consumer has begun with what is stored.

    An item that a call by position has changed or removed since is not the consumer's any more. Neither are those that
    the consumer began behind it: it gave them a state that includes that item's.

    By snapshot: only the holder of the lease removes the others, and then also writes the leased pointer, which the
    caller reads. All else that removes or changes a waiting item writes the leased pointer, too.

    Args:
        begun: the items, in the order in which the consumer began them.
        head: the session's first items, as this transaction has read them. Others are read one by one.
        known: the packed position of the last item in front of these that the consumer knows to be acked.
    """
    places = [one.packed for one in begun]
    acked = turn.pointer.acked
    first = places.index(acked) + 1 if acked in places else 0
    available = turn.session.layout.available
    stored = {row.key: row.value for row in head.rows}
    keys = [available.key(packed) for packed in places[first:]]
    reads = [started(rows(tr.snapshot, key, key + b"\x00", limit=1)) for key in keys if key not in stored]
    for read in reads:
        stored.update((row.key, row.value) for row in await read)
    if not first and acked not in (b"", known) and not any(key in stored for key in keys):
        return Compared(len(places), [], None)  # a verb of a later item has acked all of them
    found: list[tuple[bytes, bytes]] = []
    for key, one in zip(keys, begun[first:], strict=True):
        value = stored.get(key, b"")
        if not value or one.stored not in (b"", value):
            return Compared(first, found, one)
        found.append((key, value))
    return Compared(first, found, None)
