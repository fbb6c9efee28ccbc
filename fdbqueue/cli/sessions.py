"""``fdbqueue sessions``: which sessions a queue has, and what operators do to them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from fdbqueue.base.reprs import counted
from fdbqueue.cli.errors import end, end_if, refuse_if, tell
from fdbqueue.cli.input import JsonRecord
from fdbqueue.cli.items import confirm_removal, print_stored
from fdbqueue.cli.naming import no_session, session_named, sessions_of, tell_none
from fdbqueue.cli.opening import CodecName, opened_queue
from fdbqueue.cli.options import only_one
from fdbqueue.cli.output import SCREENFUL, TableColumn, number_text, present, print_rows, time_text, wants_table
from fdbqueue.engine.api import Database
from fdbqueue.errors import FormatError
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
    queue: str,
    status: Status | None = None,
    limit: int | None = None,
    after: str | None = None,
    items: str | None = None,
    pause: str | None = None,
    resume: str | None = None,
    remove: str | None = None,
    later: Later | None = None,
    skip: str | None = None,
    redrive: str | None = None,
    purge: str | None = None,
    yes: bool = False,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    as_json: bool = False,
) -> None:
    """List the sessions of a queue by their names. Exits with 1 if there is none.

    A session is ready, busy (with its worker, since when and until when), gated (waiting for a slot of a gate), waiting
    for a delay, paused, blocked, or idle with dead letters only. A session's name is text, or a tuple as JSON.

    With --items it prints one session's items instead: those that wait, in order, and its dead letters. `fdbqueue get`
    has the item in progress.

    With one of the other options that take a name it changes that session, and prints it. It then exits with 1 if the
    session has nothing any more.

    Args:
        status: Only sessions in this state.
        limit (as listed):
        after: Only sessions behind this name.
        items (NAME): Print the items and dead letters of this session.
        pause (NAME): Pause this session.
        resume (NAME): End its pause.
        remove (NAME): Remove it when its present items are done.
        later: With --remove: refuse items enqueued until it is gone (default), or begin it again with them.
        skip (NAME): Unblock it.
        redrive (NAME): Put its dead letters back, and unblock it.
        purge (NAME): Remove its dead letters for good. Asks first.

    Example: fdbqueue sessions orders --status busy
    """
    given = only_one(pause=pause, resume=resume, remove=remove, skip=skip, redrive=redrive, purge=purge)
    refuse_if(later is not None and remove is None, "it goes with --remove only", "--later")
    table = wants_table(as_json)
    is_alone = not given and status is None and after is None
    refuse_if(items is not None and not is_alone, "it goes with --limit, --codec and --json only", "--items")
    with opened_queue(url, queue, None if items is None else codec) as (db, own):
        source = sessions_of(own)
        if items is not None:
            name, most = session_named(items, "--items"), limit or (SCREENFUL if table else MOST_ITEMS)
            if not _print_items(db, source, name, codec, most, table=table):
                tell(no_session(db, own, name, items))
                end()
            return
        if given:
            verb, text = given
            name = session_named(text, f"--{verb}")
            there = _info(source, db, name, is_mended=verb in ("resume", "remove"))
            # Probably a mistyped name. A program may pause a session before its first item.
            if verb == "pause" and there is None:
                tell(no_session(db, own, name, text))
                end()
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
                tell(f"{text} {why}{_present(db, source, name, info)}.")
            if info is None:
                gone = f"The session {text} has nothing any more."
                tell(no_session(db, own, name, text) if there is None else gone)
            found: Iterable[SessionInfo] = [] if info is None else [info]
        else:
            behind = None if after is None else session_named(after, "--after")
            chosen: Any = None if status is None else status.value
            found = source.list(db, status=chosen, after=behind, limit=limit or (SCREENFUL if table else None))
        printed = print_rows(found, COLUMNS, lambda one: {"queue": queue, **_session(one)}, table=table)
        if not printed and not given:
            tell_none(db, own, "sessions" if is_alone else "sessions that fit", "")
    end_if(not printed)


def _print_items(
    db: Database, source: Sessions, name: SessionName, codec: CodecName, limit: int, *, table: bool
) -> bool:
    """Print what waits in a session, and then its dead letters. Return whether there was something."""
    found = list(source.scheduled(db, name, limit=limit, on_bad="null"))
    if len(found) < limit:
        found += source.dead(db, name, limit=limit - len(found), on_bad="null")
    print_stored(found, codec, table=table)
    return bool(found)


def _info(source: Sessions, db: Database, name: SessionName, *, is_mended: bool) -> SessionInfo | None:
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


def _present(db: Database, source: Sessions, name: SessionName, one: SessionInfo) -> str:
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
    command = f"fdbqueue reschedule {own} {first[0].position.text} --session {word} --delay 0"
    return f"{told}. To try it now: `{command}`"


def _session(one: SessionInfo) -> JsonRecord:
    own = {"session": session_json(one.session), "status": one.status, "items": one.items}
    optional = {
        "worker": one.consumer,
        "since": one.since,
        "until": one.until,
        "reason": one.reason,
        "gate": None if one.gate is None else session_json(one.gate),
        "paused": one.paused,
        "closing": one.closing,
    }
    return {**own, "delayed": one.delayed, "dead": one.dead, **present(optional)}


def _reason(one: SessionInfo) -> str:
    return " ".join(one.reason.split()) if one.gate is None else f"waits at the gate {session_text(one.gate)}"


def _status(one: SessionInfo) -> str:
    paused = ", paused" if one.paused and one.status != "paused" else ""
    return f"{one.status}{paused}{', closing' if one.closing else ''}"


COLUMNS: tuple[TableColumn[SessionInfo], ...] = (
    TableColumn("session", lambda one: session_text(one.session)),
    TableColumn("status", _status),
    TableColumn("items", lambda one: f"{one.items:,}", number=True),
    TableColumn("delayed", lambda one: number_text(one.delayed), number=True, optional=True),
    TableColumn("dead", lambda one: number_text(one.dead), number=True, optional=True),
    TableColumn("worker", lambda one: one.consumer, optional=True),
    TableColumn("since", lambda one: time_text(one.since), optional=True),
    TableColumn("until", lambda one: time_text(one.until), optional=True),
    TableColumn("reason", _reason, optional=True),
)
