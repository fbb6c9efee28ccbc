"""Sessions, as commands name them and take them."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from fdbqueue.base.reprs import near_texts
from fdbqueue.engine.steps import rows, run
from fdbqueue.errors import FormatError
from fdbqueue.layers.sessions import Gate, Sessions, SessionStats
from fdbqueue.layers.sessions.session.records import Keys, SessionName, pack_name
from fdbqueue.layers.sessions.session.records import name_of as session_name
from fdbqueue.stored import names
from fdbqueue.stored.layout import name_of
from fdbqueue.verbs.queue import Queue

LEVELS = 256
"""The commands take any level that a program may have given."""

MOST_NAMES = 10_000
"""How many names of sessions are compared with a mistyped one."""
USUAL_LEVEL = 1
"""The level of items that are not urgent, with the two levels that sessions have by default."""

SessionOption = Annotated[
    str | None,
    typer.Option("--session", "-S", help="The session of the items: text, or a tuple as JSON: '[\"shop\", 7]'."),
]
Level = Annotated[
    int | None,
    typer.Option(
        "--level", "-l", min=0, max=LEVELS - 1, help="Their level in the session: 0 is urgent, 1 is usual. Default: 1."
    ),
]
GateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="NAME=LIMIT",
        help="A gate of the session and its default limit, if the session begins now. Several: the outermost first."
        " Or: none.",
    ),
]

Plain = Annotated[bool, typer.Option("--plain", help="Also if the queue's items are in sessions: beside them.")]


def session_named(text: str, hint: str) -> SessionName:
    """Return the name of a session from its text: the text itself, or a tuple or bytes as JSON.

    >>> session_named("ann", "--session"), session_named('["shop", 7]', "--session")
    ('ann', ('shop', 7))
    """
    try:
        name = names.session_named(text)
        pack_name(name)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error
    return name


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
            raise typer.BadParameter(f"{text!r} names no gate, as in tenant=10: {error}", param_hint=hint) from error
    return gates


def check_gates(db: Any, sessions: Sessions, session: SessionName) -> None:
    """Refuse to begin a session without gates while others have some: its program may give it some, too.

    Raises:
        BadParameter: the session has no items yet, and gates are in use.
    """
    there = sessions.info(db, session)
    if there is not None and (there.items or there.delayed):
        return  # it has the gates that it began with
    for gate in sessions.gates(db, limit=1):
        raise typer.BadParameter(
            f"sessions of this queue have gates, such as {names.session_text(gate.gate)}, and this one would begin"
            " without: give its gates, the outermost first, as in --gate tenant=10, or --gate none",
            param_hint="--session",
        )


def refuse_among_sessions(db: Any, queue: Queue, remedy: str) -> None:
    """Refuse a plain item, or who takes plain items only, if the queue has items in sessions: most often a slip.

    Raises:
        BadParameter: it has.
    """
    span = queue.layout.space["items"].range()
    if run(queue.read(db, lambda tr: rows(tr.snapshot, span.start, span.stop, limit=1))):
        raise typer.BadParameter(
            "this queue has items in sessions. A Consumer of its Sessions takes no plain items, and a subscription gets"
            f" no items of sessions. {remedy}; or --plain, if you mean the plain items beside them",
            param_hint="QUEUE",
        )


def sessions_of(queue: Queue, **rules: Any) -> Sessions:
    """Return the sessions of a queue, with as many levels as any program may give them."""
    return Sessions(queue, levels=LEVELS, **rules)


def tell_none(db: Any, queue: Queue, what: str, counter: str) -> None:
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
    typer.echo(f"The queue has no {what}{hint}.", err=True)


def no_session(db: Any, queue: Queue, name: SessionName, text: str) -> str:
    """Return a sentence about a session that is not there, with the nearest of the first 10,000 names."""
    records = Keys(queue.layout).records
    span, length = records.range(), len(records.key())
    found = run(queue.read(db, lambda tr: rows(tr.snapshot, span.start, span.stop, limit=MOST_NAMES)))
    shown = [names.session_text(session_name(row.key[length:])) for row in found]
    if names.session_text(name) in shown:
        return f"The session {text} has no items."
    near = " or ".join(near_texts(text, shown))
    return f"There is no session {text}." + (f" Did you mean {near}?" if near else "")


def session_stats(db: Any, queue: Queue) -> SessionStats | None:
    """Return the numbers of a queue's sessions; None if it never had any."""
    stats = sessions_of(queue).stats(db)
    return stats if stats.enqueued else None
