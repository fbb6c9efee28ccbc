"""The way into a session: whether the queue and the session take an item, and behind which index.

Plain and smart enqueues pass here. What they then write, `fdbqueue.writes.appending` does.
"""

from __future__ import annotations

from typing import NamedTuple

from fdbqueue import ChecksBypassed, Queue, SessionClosed
from fdbqueue.lowlevel import Transaction, register, started, value_of
from fdbqueue.moves.admission import is_marked, mark_smart
from fdbqueue.stored.looks import look

from ..session.records import REFUSING, RENEWING, SessionRecord, name_of
from ..session.session import Session
from .line import Line


class SessionEntry(NamedTuple):
    """Where the items of an enqueue go."""

    session: Session
    """The generation of the session that takes them."""
    record: SessionRecord | None
    """The session's record, read by snapshot; None: it has none."""
    last_index: int
    """The last index of the level."""


async def enter_sessions(tr: Transaction, line: Line, queue: Queue, *, smart: bool) -> None:
    """Ask whether items may enter the sessions of a queue, after smart checks or without.

    Raises:
        OtherCodec, QueueRenamed, NestedQueue: as `register`.
        ChecksBypassed: the queue has a quota. Or its sessions make smart checks, and these items pass none.
    """
    await register(tr, queue.layout)
    layout, known = line.layout, line.layout.known
    if known.is_plain is smart or not known.relies(tr):
        await look(tr, layout)
        if smart and known.is_plain:
            mark_smart(tr, layout)
        elif not smart and not known.is_plain and await is_marked(tr, layout):
            raise bypassed(queue)


async def enter_session(tr: Transaction, line: Line, queue: Queue, name: bytes, level: int) -> SessionEntry:
    """Return where the items for a session go.

    Raises:
        SessionClosed: it takes none.

    *Conflicts:* with a change of the session. *Cost:* three reads in parallel.
    """
    session = line.session(name)
    # By snapshot: the record also says where the pointer is, which changes nothing for an enqueue. All other changes of
    # the record also write the guard.
    tr.add_read_conflict_key(session.guard_key)
    recorded = tr.snapshot.get(session.record_key)
    last = started(session.last_index(tr, level))
    record = session.record_in(await value_of(recorded))
    if record is not None and (generation := generation_to_enter(queue, name, record)):
        session = line.session(name, generation)
        last = started(session.last_index(tr, level))
    return SessionEntry(session, record, await last)


def generation_to_enter(queue: Queue, name: bytes, record: SessionRecord) -> int:
    """Return the generation of a session that its new items belong to.

    Raises:
        SessionClosed: the session is being removed.
    """
    if record.closing == REFUSING:
        raise SessionClosed(
            f"The session {name_of(name)!r} of {queue!r} is being removed and takes no more items. Enqueue again when"
            " it is gone; or remove it with later='renew', which keeps later items for a new generation."
        )
    return record.generation + (record.closing == RENEWING)


def bypassed(queue: Queue) -> ChecksBypassed:
    """Return the error of an enqueue that would bypass the smart checks of a queue's sessions."""
    return ChecksBypassed(
        f"The sessions of {queue!r} make smart checks, which this enqueue would bypass. Nothing was written. Enqueue by"
        " fdbqueue.layers.SmartSessions(sessions).enqueue or enqueue_many. Lease, ack and all other verbs are as ever."
    )
