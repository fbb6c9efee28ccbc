"""``fdbqueue sessions``: which sessions a queue has, and what operators do to them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from fdbqueue import FormatError
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.byposition import print_stored
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, Yes, place, queue_of
from fdbqueue.cli.output import wants_table
from fdbqueue.cli.sessioning import no_session, session_named, sessions_of, tell_none
from fdbqueue.cli.tables import SCREENFUL, TableColumn, line_of, number_text, print_rows, time_text
from fdbqueue.cli.where import confirm_removal
from fdbqueue.layers.sessions import SessionInfo, Sessions
from fdbqueue.layers.sessions.session.records import SessionName
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import queue_word, session_json, session_text, session_word

MOST_ITEMS = 1_000
"""How many items of a session are printed if no number is given: one transaction reads them."""
LETTERS_AT_ONCE = 100
"""How many dead letters one transaction changes."""


class Status(StrEnum):
    """The states of a session."""

    ready = "ready"
    busy = "busy"
    gated = "gated"
    waiting = "waiting"
    paused = "paused"
    blocked = "blocked"
    idle = "idle"


class Later(StrEnum):
    """What becomes of items that are enqueued while a session is removed."""

    refuse = "refuse"
    renew = "renew"


def sessions(
    queue: QueueName,
    status: Annotated[Status | None, typer.Option("--status", help="Only sessions in this state.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Largest number. Default: all; on a terminal, 20.")
    ] = None,
    after: Annotated[str | None, typer.Option("--after", help="Only sessions behind this name.")] = None,
    items: Annotated[
        str | None, typer.Option("--items", metavar="NAME", help="Print the items and dead letters of this session.")
    ] = None,
    pause: Annotated[str | None, typer.Option("--pause", metavar="NAME", help="Pause this session.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="NAME", help="End its pause.")] = None,
    remove: Annotated[
        str | None, typer.Option("--remove", metavar="NAME", help="Remove it when its present items are done.")
    ] = None,
    later: Annotated[
        Later | None,
        typer.Option(
            "--later",
            help="With --remove: refuse items enqueued until it is gone (default), or begin it again with them.",
        ),
    ] = None,
    skip: Annotated[str | None, typer.Option("--skip", metavar="NAME", help="Unblock it.")] = None,
    redrive: Annotated[
        str | None, typer.Option("--redrive", metavar="NAME", help="Put its dead letters back, and unblock it.")
    ] = None,
    purge: Annotated[
        str | None, typer.Option("--purge", metavar="NAME", help="Remove its dead letters for good. Asks first.")
    ] = None,
    yes: Yes = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """List the sessions of a queue by their names. Exits with 1 if there is none.

    A session is ready, busy (with its worker, since when and until when), gated (waiting for a slot of a gate), waiting
    for a delay, paused, blocked, or idle with dead letters only. A session's name is text, or a tuple as JSON.

    With --items it prints one session's items instead: those that wait, in order, and its dead letters. `fdbqueue get`
    has the item in progress.

    With one of the other options that take a name it changes that session, and prints it. It then exits with 1 if the
    session has nothing any more.

    Example: fdbqueue sessions orders --status busy
    """
    actions = {"pause": pause, "resume": resume, "remove": remove, "skip": skip, "redrive": redrive, "purge": purge}
    given = {verb: name for verb, name in actions.items() if name is not None}
    if len(given) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" / ".join(f"--{verb}" for verb in given))
    if later is not None and remove is None:
        raise typer.BadParameter("it goes with --remove only", param_hint="--later")
    own = queue_of(queue) if items is None else queue_of(queue, codec)
    source = sessions_of(own)
    table = wants_table(as_json)
    if items is not None:
        if given or status is not None or after is not None:
            raise typer.BadParameter("it goes with --limit, --codec and --json only", param_hint="--items")
        with opened_queue(url, own) as db:
            at_most = limit or (SCREENFUL if table else MOST_ITEMS)
            name = session_named(items, "--items")
            if not _print_items(db, source, name, codec, at_most, table=table):
                typer.echo(no_session(db, own, name, items), err=True)
                raise typer.Exit(errors.EMPTY)
        return
    with opened_queue(url, own) as db:
        if given:
            [(verb, text)] = given.items()
            name = session_named(text, f"--{verb}")
            there = _info(source, db, name, is_mended=verb in ("resume", "remove"))
            # Probably a mistyped name. A program may pause a session before its first item.
            if verb == "pause" and there is None:
                typer.echo(no_session(db, own, name, text), err=True)
                raise typer.Exit(errors.EMPTY)
            if verb == "purge" and there is not None and there.dead:
                confirm_removal(f"the {counted(there.dead, 'dead letter')} of the session {text}", yes=yes)
            if verb in ("purge", "redrive"):
                while getattr(source, verb)(db, name, limit=LETTERS_AT_ONCE) == LETTERS_AT_ONCE:
                    pass
            elif later is not None:
                source.remove(db, name, later=later.value)
            else:
                getattr(source, verb)(db, name)
            info = source.info(db, name)
            is_changed = verb == "resume" and there != info  # it may have been mended
            if info is not None and there is not None and not is_changed and (why := _idle_verb(verb, there)):
                typer.echo(f"{text} {why}{_present(db, source, name, info)}.", err=True)
            if info is None:
                gone = f"The session {text} has nothing any more."
                typer.echo(no_session(db, own, name, text) if there is None else gone, err=True)
            found: Iterable[SessionInfo] = [] if info is None else [info]
        else:
            behind = None if after is None else session_named(after, "--after")
            most = limit or (SCREENFUL if table else None)
            found = source.list(db, status=None if status is None else status.value, after=behind, limit=most)
        printed = print_rows(found, COLUMNS, lambda one: line_of({"queue": queue, **_record(one)}), table=table)
        if not printed and not given:
            chosen = status is not None or after is not None
            tell_none(db, own, "sessions that fit" if chosen else "sessions", "")
    if not printed:
        raise typer.Exit(errors.EMPTY)


def _print_items(
    db: Any, source: Sessions[Any], name: SessionName, codec: CodecName, limit: int, *, table: bool
) -> bool:
    """Print what waits in a session, and then its dead letters. Return whether there was something."""
    found = list(source.scheduled(db, name, limit=limit, on_bad="null"))
    if len(found) < limit:
        found += source.dead(db, name, limit=limit - len(found), on_bad="null")
    print_stored(found, codec, table=table)
    return bool(found)


def _info(source: Sessions[Any], db: Any, name: SessionName, *, is_mended: bool) -> SessionInfo | None:
    """Describe a session; None if there is none, or if it can't be read and the verb mends it."""
    try:
        return source.info(db, name)
    except FormatError as error:
        if not is_mended or error.newer:
            raise
        return None


def _idle_verb(verb: str, there: SessionInfo) -> str:
    """Return why a verb has nothing to do for a session; "" if it has, or that is not known."""
    hidden = there.status in ("blocked", "busy")  # a session in progress may be blocked, too
    if verb == "resume" and not there.paused:
        return "is not paused"
    if verb == "skip" and not hidden:
        return "is not blocked"
    is_mended = there.status == "blocked" and verb == "redrive"
    return "has no dead letters" if verb in ("redrive", "purge") and not there.dead and not is_mended else ""


def _present(db: Any, source: Sessions[Any], name: SessionName, one: SessionInfo) -> str:
    """Return what a session does instead, and how to change that."""
    own, word = queue_word(name_of(source.queue.layout.prefix)), session_word(name)
    if one.status == "paused":
        return f"; it is paused: `fdbqueue sessions {own} --resume {word}` ends that"
    if one.status != "waiting":
        return f"; it is {one.status}"
    told = f"; its first item waits until {time_text(one.until)}"
    first = source.scheduled(db, name, limit=1)
    if not first:
        return told
    command = f"fdbqueue reschedule {own} {place(first[0].position)} --session {word} --delay 0"
    return f"{told}. To try it now: `{command}`"


def _record(one: SessionInfo) -> dict[str, Any]:
    record: dict[str, Any] = {
        "session": session_json(one.session),
        "status": one.status,
        "items": one.items,
        "delayed": one.delayed,
        "dead": one.dead,
    }
    optional = {
        "worker": one.consumer or None,
        "since": one.since,
        "until": one.until,
        "reason": one.reason or None,
        "gate": None if one.gate is None else session_json(one.gate),
        "paused": one.paused or None,
        "closing": one.closing or None,
    }
    return record | {name: value for name, value in optional.items() if value is not None}


def _reason(one: SessionInfo) -> str:
    return " ".join(one.reason.split()) if one.gate is None else f"waits at the gate {session_text(one.gate)}"


def _status(one: SessionInfo) -> str:
    paused = ", paused" if one.paused and one.status != "paused" else ""
    return f"{one.status}{paused}{', closing' if one.closing else ''}"


def _name(one: SessionInfo) -> str:
    return session_text(one.session)


COLUMNS: tuple[TableColumn[SessionInfo], ...] = (
    TableColumn("session", _name),
    TableColumn("status", _status),
    TableColumn("items", lambda one: f"{one.items:,}", number=True),
    TableColumn("delayed", lambda one: number_text(one.delayed), number=True, optional=True),
    TableColumn("dead", lambda one: number_text(one.dead), number=True, optional=True),
    TableColumn("worker", lambda one: one.consumer, optional=True),
    TableColumn("since", lambda one: time_text(one.since), optional=True),
    TableColumn("until", lambda one: time_text(one.until), optional=True),
    TableColumn("reason", _reason, optional=True),
)
