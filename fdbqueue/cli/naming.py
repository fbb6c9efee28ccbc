"""Sessions, gates and levels, as commands name them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.base.reprs import near_texts
from fdbqueue.cli.errors import refuse, refuse_if, refused, tell
from fdbqueue.cli.options import LEVELS
from fdbqueue.engine.api import Database
from fdbqueue.engine.steps import rows, run
from fdbqueue.errors import FormatError
from fdbqueue.layers.common.levels import Levels, levels_named
from fdbqueue.layers.sessions import Gate, Sessions, SessionStats
from fdbqueue.layers.sessions.session.records import Keys, SessionName, pack_name
from fdbqueue.layers.sessions.session.records import name_of as session_name
from fdbqueue.stored import names
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.settings import read_high_water_mark
from fdbqueue.verbs.queue import Queue

MOST_NAMES = 10_000
"""How many names of sessions are compared with a mistyped one."""


def session_named(text: str, hint: str) -> SessionName:
    """Return the name of a session from its text: the text itself, or a tuple or bytes as JSON.

    >>> session_named("ann", "--session"), session_named('["shop", 7]', "--session")
    ('ann', ('shop', 7))
    """
    with refused(hint, (TypeError, ValueError)):
        name = names.session_named(text)
        pack_name(name)
        return name


def check_level(session: str | None, level: int | None) -> None:
    """Refuse a level of an item that is in no session."""
    refuse_if(session is None and level is not None, "a level is one of a session: give --session too", "--level")


def gates_named(texts: list[str] | None, hint: str) -> list[Gate]:
    """Return gates from texts like ``acme=10`` or ``["tenant", "acme"]=10``; none for none, or the text "none".

    >>> gates_named(['["tenant", 7]=10', "mail=2"], "--gate")
    [Gate(name=('tenant', 7), limit=10), Gate(name='mail', limit=2)]
    """
    gates = []
    for text in texts or ():
        name, found, limit = text.rpartition("=")
        if text == "none" and len(texts or ()) == 1:
            return []
        try:
            if not found:
                raise ValueError("it has no '=' before its limit")
            gates.append(Gate(session_named(name, hint), int(limit)))
        except ValueError as error:
            refuse(f"{text!r} names no gate, as in tenant=10: {error}", hint)
    return gates


def check_gates(db: Database, sessions: Sessions, session: SessionName) -> None:
    """Refuse to begin a session without gates while others have some: its program may give it some, too.

    Raises:
        BadParameter: the session has no items yet, and gates are in use.
    """
    there = sessions.info(db, session)
    if there is not None and (there.items or there.delayed):
        return  # it has the gates that it began with
    for gate in sessions.gates(db, limit=1):
        refuse(
            f"sessions of this queue have gates, such as {names.session_text(gate.gate)}, and this one would begin"
            " without: give its gates, the outermost first, as in --gate tenant=10, or --gate none",
            "--session",
        )


def has_keys(db: Database, queue: Queue, family: str) -> bool:
    """Return whether a queue has a key of a family."""
    span = queue.layout.space[family].range()
    return bool(run(queue.read(db, lambda tr: rows(tr.snapshot, span.start, span.stop, limit=1))))


def refuse_among_sessions(db: Database, queue: Queue, remedy: str) -> None:
    """Refuse a plain item, or who takes plain items only, if the queue has items in sessions: most often a slip."""
    refuse_if(
        has_keys(db, queue, "items"),
        "this queue has items in sessions. A Consumer of its Sessions takes no plain items, and a subscription gets"
        f" no items of sessions. {remedy}; or --plain, if you mean the plain items beside them",
        "QUEUE",
    )


def sessions_of(queue: Queue, **rules: Any) -> Sessions:
    """Return the sessions of a queue, with as many levels as any program may give them."""
    return Sessions(queue, levels=LEVELS, **rules)


def tell_none(db: Database, queue: Queue, what: str, counter: str) -> None:
    """Say on standard error that a queue has no such plain items, and how many are in sessions.

    Args:
        what: the items, as "dead letters".
        counter: the counter of those in sessions, a field of `SessionStats`; "" if they have none.
    """
    there = 0
    with suppress(FormatError):
        there = getattr(session_stats(db, queue), counter, 0) if counter else 0
    verb, name = "is" if there == 1 else "are", names.queue_word(name_of(queue.layout.prefix))
    hint = f"; {there:,} {verb} in sessions: `fdbqueue sessions {name}`" if there > 0 else ""
    tell(f"The queue has no {what}{hint}.")


def no_session(db: Database, queue: Queue, name: SessionName, text: str) -> str:
    """Return a sentence about a session that is not there, with the nearest of the first 10,000 names."""
    records = Keys(queue.layout).records
    span, length = records.range(), len(records.key())
    found = run(queue.read(db, lambda tr: rows(tr.snapshot, span.start, span.stop, limit=MOST_NAMES)))
    shown = [names.session_text(session_name(row.key[length:])) for row in found]
    if names.session_text(name) in shown:
        return f"The session {text} has no items."
    near = " or ".join(near_texts(text, shown))
    return f"There is no session {text}." + (f" Did you mean {near}?" if near else "")


def session_stats(db: Database, queue: Queue) -> SessionStats | None:
    """Return the numbers of a queue's sessions; None if it never had any."""
    stats = sessions_of(queue).stats(db)
    return stats if stats.enqueued else None


def levels_of(db: Database, queue: Queue, priority: int | None, levels: str | None) -> Levels | None:
    """Return the levels to enqueue by; None if the queue has no levels.

    The command need not name an order that the queue already has.
    """
    with refused():
        named = None if levels is None else levels_named(levels if "/" in levels else f"levels/{levels}")
        if levels is not None and named is None:
            raise ValueError(f"{levels!r} is not a number of levels: give N or amqp/N")
        found = named or levels_named(order_of(db, queue) or "") or (None if priority is None else Levels())
        if found is not None and priority is not None:
            found.rank_of(priority)
        return found


def order_of(db: Database, queue: Queue) -> str | None:
    """Return the stored name of a queue's order; None: it has none."""
    return run(queue.read(db, partial(read_high_water_mark, layout=queue.layout))).order
