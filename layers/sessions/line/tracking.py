"""Items of sessions that others follow: follow-ups to release, members of groups, and items with completions.

Outcomes and groups are kept beside the line, since a session's own keys go with its last item. An item is named there
by its *address*: a position made of the session's generation, its name and the item's packed position.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from fdbqueue import Position
from fdbqueue.base.times import HELD_US
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import (
    Database,
    Transaction,
    clear_parts,
    fdb_tuple,
    has_parts,
    pack,
    read_counts,
    rows,
    run,
    value_of,
    within,
)
from fdbqueue.moves.ends import pull
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.items import notes_if_readable
from fdbqueue.stored.shapes import Due

from ..session.address import SessionAddress, session_in
from ..session.records import name_of, session_in_key
from ..session.session import Session, SessionMoves

if TYPE_CHECKING:
    from .line import Line, PointerMoves

MAX_DROPPED = 2_000
"""Of so many dead letters of a removed session the follow-ups and the blobs are removed."""
DROPPED_BYTES = 5_000_000
"""About how many bytes of these it reads at most."""
DROPPED_AT_ONCE = 100


def at_address(line: Line, address: Position) -> tuple[Session, bytes]:
    """Return the session of an address, and the item's packed position."""
    generation, name, packed = SessionAddress.of(address)
    return line.session(name, generation), packed


def named_by(line: Line, position: Position, name: bytes | None) -> tuple[Session | None, bytes]:
    """Return the session that a position itself names, if it is an address, and the item's packed position there.

    Args:
        position: what `Sessions.enqueue` returned, or an address: the position of a completion.
        name: the packed name of the session that the caller gave; None: none.

    Raises:
        TypeError: it is not known in which session the item is.
        ValueError: it is the address of an item of another session, or of none.
    """
    if position.rank is not None:
        if name is None:
            raise TypeError(
                f"{position.text} does not say in which session the item is. Give the position of its completion, or"
                " the session too, as in Sessions(queue).cancel(db, session, position)."
            )
        return None, pack(position)
    found = session_in(position)
    if found is None:
        raise ValueError(
            f"{position.text} is no position of an item in a session, which looks like LEVEL:INDEX:RANDOM, nor that of"
            " a completion."
        )
    if name is not None and fdb_tuple.pack((found[0],)) != name:
        raise ValueError(f"{position.text} names an item of the session {found[0]!r}, not of {name_of(name)!r}.")
    return at_address(line, position)


async def release(tr: Transaction, line: Line, moves: PointerMoves, address: Position, kind: str, now_us: int) -> bool:
    """Release or remove one item of a session, unless it is in progress. Return False if it is not in the session.

    Args:
        moves: the moves of the line, to be finished by the caller.
        address: the item's address.
        kind: `GO` releases a held follow-up, `DROP` removes it. `SWEEP` removes a member of a cancelled group, and
            `TTL` an item whose life is over. An item that can't be read is removed too, and not released.

    Raises:
        FormatError: the follow-up to release can't be read; nothing was written.

    *Conflicts:* with a transaction that moves the item, or leases its session. *Cost:* three reads in parallel, two
    more if something is moved.
    """
    session, packed = at_address(line, address)
    recorded = tr.get(session.record_key)
    waits, there = tr.get(session.layout.delayed.key(packed)), tr.get(session.layout.available.key(packed))
    delayed, available = await value_of(waits), await value_of(there)
    record = session.record_in(await value_of(recorded))
    if record is None or not (delayed.present() or available.present()):
        return False
    stored = bytes(delayed) if delayed.present() else bytes(available)
    if kind == Due.GO:
        session.notes(packed, stored)
    own = SessionMoves(tr, session, now_us)
    notes, is_readable = (await own.read_notes({packed: stored}))[packed]
    if (kind in (Due.GO, Due.DROP) and not (notes.held and delayed.present())) or (
        kind == Due.TTL and not Takes.is_over(stored, notes, now_us)
    ):
        return True
    if available.present():
        if await line.slots.holder(tr, session, record, packed) is not None:
            return True  # it runs to its end, or its slot removes it when its back-off is over
        if record.pointer:
            await line.note_edit(tr, record.pointer)
    own.leave("delayed" if delayed.present() else "available", packed, notes)
    if kind == Due.GO:
        own.put_back(packed, stored, notes, now_us=now_us, delay_us=notes.visible_at_us - HELD_US)
    elif kind == Due.TTL:
        own.vanish(packed, stored, "expired", notes=notes, is_readable=is_readable)
    else:
        how = "cancelled" if kind == Due.SWEEP else ""
        own.vanish(packed, stored, "deleted", notes=notes, how=how, is_readable=is_readable)
    await own.settle()
    own.finish()
    await line.slots.settle(tr, moves, session, record)
    return True


def with_items(tr: Transaction | Database, line: Line) -> Iterator[tuple[bytes, int]]:
    """Yield the sessions and generations that have keys of items."""
    begin, end = within(line.keys.items)
    while True:
        found = run(line.items.read(tr, partial(_first_key, begin=begin, end=end)))
        if not found:
            return
        of_session = session_in_key(found[0][len(line.keys.items) :])
        if of_session is None:
            begin = found[0] + b"\x00"
            continue
        packed, generation = of_session
        yield packed, generation
        begin = behind(line.session(packed, generation).layout.prefix)


async def _first_key(tr: Transaction, begin: bytes, end: bytes) -> list[bytes]:
    found = await rows(tr.snapshot, begin, end, limit=1)
    return [row.key for row in found]


async def drop_dead_letters(tr: Transaction, session: Session) -> None:
    """Count the dead letters out that are cleared with their session. Remove follow-ups and blobs of the first ones."""
    dead = session.layout.dead
    begin, size_bytes = dead.begin, 0
    for _ in range(MAX_DROPPED // DROPPED_AT_ONCE):
        found = await rows(tr.snapshot, begin, dead.end, limit=DROPPED_AT_ONCE)
        for row in found:
            pull(tr, notes_if_readable(row.value).then, Due.DROP)
            if has_parts(row.value):
                clear_parts(tr, session.layout, dead.packed(row.key), row.value, session.home)
        size_bytes += sum(len(row.value) for row in found)
        if len(found) < DROPPED_AT_ONCE or size_bytes > DROPPED_BYTES:
            break
        begin = found[-1].key + b"\x00"
    tr.add_read_conflict_range(dead.begin, dead.end)
    counts = await read_counts(tr, session.layout)
    session.count_all(tr, dead=-counts.get("dead", 0), purged=counts.get("dead", 0))
