"""The buttons: each change says first how many things it would change, and is then made as it was previewed.

A change of items names them by their positions, or by the search that found them. A search is made again when the
change is confirmed, and takes at most as many items as the preview said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue import Position, Queue
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run
from fdbqueue.layers import Leases, Sessions, Watchdog
from fdbqueue.layers.schedules import Schedules
from fdbqueue.layers.sessions.operators.changes import Operating
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.stored.names import session_named, text_named
from fdbqueue.stored.settings import Quota
from fdbqueue.web.looks import MOST_CHOSEN, WantedItems, chosen

Fields = Mapping[str, str]
LETTERS_AT_ONCE = 100
"""How many dead letters of a session one transaction changes."""
LONGEST_NUMBER = 18
"""How many digits a limit of a quota has at most."""


@dataclass(frozen=True, slots=True)
class PageChange:
    """One kind of change."""

    title: str
    """What it does, as the button says it."""
    of: str
    """What it changes: "items", "queue", "session" or "schedule"."""
    apply: Callable[..., int]
    """Makes it; returns how many things it changed."""
    danger: bool = False
    """Whether it removes something for good."""
    states: tuple[str, ...] = ()
    """The states of items that it takes."""

    def done(self, fields: Fields, number: int) -> str:
        """Return what the page says after it."""
        of = f" {fields.get(self.of, '')}" if self.title.endswith(" of") else ""
        return f"{self.title}{of}: {f'{number:,} done' if number else 'nothing changed'}"


def _cancel(db: Database, queue: Queue, positions: list[Position], _: Fields) -> int:
    return sum(queue.cancel_many(db, positions))


def _reschedule(db: Database, queue: Queue, positions: list[Position], fields: Fields) -> int:
    found = queue.reschedule_many(db, positions, delay=seconds(fields.get("delay", "0")))
    return sum(position is not None for position in found)


def _redrive(db: Database, queue: Queue, positions: list[Position], _: Fields) -> int:
    return Leases(queue).dead.redrive(db, positions)


def _purge(db: Database, queue: Queue, positions: list[Position], _: Fields) -> int:
    return Leases(queue).dead.purge(db, positions)


def _bury(db: Database, queue: Queue, positions: list[Position], fields: Fields) -> int:
    leases, why = Leases(queue), fields.get("why", "").strip() or None
    return sum(leases.dead.bury(db, position, error=why) for position in positions)


def _pause(db: Database, queue: Queue, fields: Fields) -> int:
    queue.pause(db, reason=fields.get("reason", ""), by=fields.get("by") or "web page")
    return 1


def _resume(db: Database, queue: Queue, _: Fields) -> int:
    was = queue.paused(db) is not None
    queue.resume(db)
    return int(was)


def _sweep(db: Database, queue: Queue, _: Fields) -> int:
    found = 0
    for dog in (Watchdog(Leases(queue)), Watchdog(Sessions(queue))):
        dog.sweep(db)
        found += dog.report.leases + dog.report.delays + dog.report.expired
    return found


def _quota(db: Database, queue: Queue, fields: Fields) -> int:
    quota = _wanted_quota(fields)
    if quota is None:
        queue.set_quota(db, None)
    else:
        queue.set_quota(db, quota.items, size_bytes=quota.size_bytes, when_full=quota.when_full)
    return 1


def _wanted_quota(fields: Fields) -> Quota | None:
    """Return the quota that a form asks for; None: it removes the quota.

    Raises:
        ValueError: a field is wrong.
    """
    items, size = _limit(fields, "items"), _limit(fields, "bytes")
    if items is None and size is None:
        return None
    when_full: Any = fields.get("when_full", "refuse")
    return Quota(items, when_full, size)


def _limit(fields: Fields, name: str) -> int | None:
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise ValueError(f"A quota is a whole number of {name}, or nothing for no limit, not {text[:40]!r}.")
    return int(text)


def _all_dead(change: Callable[[], int]) -> int:
    """Change the dead letters of a session, some in each transaction; return how many."""
    done = change()
    found = done
    while done == LETTERS_AT_ONCE:
        done = change()
        found += done
    return found


def _of_session(verb: str) -> Callable[..., int]:
    def apply(db: Database, queue: Queue, fields: Fields) -> int:
        sessions = Sessions(queue)
        name = session_named(fields.get("session", ""))
        if sessions.info(db, name) is None:
            return 0
        if verb in ("purge", "redrive"):
            return _all_dead(partial(getattr(sessions, verb), db, name, limit=LETTERS_AT_ONCE))
        before = _marks(db, sessions, name)
        found = getattr(sessions, verb)(db, name)
        return int(found) if isinstance(found, int) else int(_marks(db, sessions, name) != before)

    return apply


def _marks(db: Database, sessions: Sessions, name: Any) -> tuple[bool, int] | None:
    """Return whether a session is paused, also while it is busy or blocked, and whether it ends; None: it has gone."""

    async def body(tr: Transaction) -> Any:
        return await Operating(sessions.line).read(tr.snapshot, pack_name(name))

    _, record = run(sessions.queue.read(db, body))
    return None if record is None else (record.paused, record.closing)


def _try_now(db: Database, queue: Queue, fields: Fields) -> int:
    """Make the first item of a waiting session due: that of the back-off, or the first that has its time."""
    sessions, name = Sessions(queue), session_named(fields.get("session", ""))
    session = sessions.info(db, name)
    waits = sessions.scheduled(db, name) if session is not None and session.status == "waiting" else []
    if not waits:
        return 0
    first = min(waits, key=lambda item: (item.state == "delayed", item.visible_at or 0.0))
    return int(sessions.reschedule(db, name, first.position, delay=0) is not None)


def _cancel_in_session(db: Database, queue: Queue, fields: Fields) -> int:
    position = Position.parse(fields.get("position", ""))
    return int(Sessions(queue).cancel(db, session_named(fields.get("session", "")), position))


def _of_schedule(verb: str) -> Callable[..., int]:
    def apply(db: Database, queue: Queue, fields: Fields) -> int:
        try:
            getattr(Schedules(queue, time.time), verb)(db, text_named(fields.get("schedule", ""), "schedule"))
        except LookupError as error:
            raise ValueError(str(error.args[0])) from error
        return 1

    return apply


CHANGES: Mapping[str, PageChange] = {
    "redrive": PageChange("Redrive", "items", _redrive, states=("dead",)),
    "purge": PageChange("Purge", "items", _purge, danger=True, states=("dead",)),
    "cancel": PageChange("Cancel", "items", _cancel, danger=True, states=("available", "leased", "delayed", "dead")),
    "reschedule": PageChange("Reschedule", "items", _reschedule, states=("available", "leased", "delayed", "dead")),
    "bury": PageChange("Bury", "items", _bury, states=("available",)),
    "pause": PageChange("Pause", "queue", _pause),
    "resume": PageChange("Resume", "queue", _resume),
    "quota": PageChange("Set the quota of", "queue", _quota),
    "sweep": PageChange("Fire the due timers of", "queue", _sweep),
    "session-pause": PageChange("Pause", "session", _of_session("pause")),
    "session-resume": PageChange("Resume", "session", _of_session("resume")),
    "session-try": PageChange("Try now", "session", _try_now),
    "session-skip": PageChange("Unblock", "session", _of_session("skip")),
    "session-redrive": PageChange("Redrive the dead letters of", "session", _of_session("redrive")),
    "session-purge": PageChange("Purge the dead letters of", "session", _of_session("purge"), danger=True),
    "session-remove": PageChange("Remove", "session", _of_session("remove"), danger=True),
    "schedule-pause": PageChange("Pause", "schedule", _of_schedule("pause")),
    "schedule-resume": PageChange("Resume", "schedule", _of_schedule("resume")),
    "session-cancel": PageChange("Cancel an item of", "session", _cancel_in_session, danger=True),
}
"""All changes, by the name in a form."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do."""

    change: PageChange
    number: int
    """How many items; 1 for a queue or a session."""
    is_all: bool
    """Whether the search found no more than that."""
    positions: tuple[str, ...]
    """The named items; empty if a search names them."""
    told: tuple[str, ...] = ()
    """What else the page says before the change."""


def change_named(name: str) -> PageChange:
    """Return a change by its name.

    Raises:
        ValueError: there is none.
    """
    if name not in CHANGES:
        raise ValueError(f"There is no change {name[:40]!r}. There are {', '.join(CHANGES)}.")
    return CHANGES[name]


def preview(db: Database, queue: Queue, name: str, fields: Fields, positions: list[str]) -> Preview:
    """Return what a change would do. It changes nothing.

    Raises:
        ValueError: the form names no items, or a field of it is wrong.
    """
    change = change_named(name)
    if name == "reschedule":
        seconds(fields.get("delay", "0"))
    if name == "quota":
        wanted, now = _wanted_quota(fields), queue.quota(db)
        told = tuple(
            f"{when}: {quota.text if quota else 'no quota'}" for when, quota in (("now", now), ("then", wanted))
        )
        return Preview(change, 1, is_all=True, positions=(), told=told)
    if change.of != "items":
        return Preview(change, 1, is_all=True, positions=())
    if positions:
        return Preview(change, len(_parsed(positions)), is_all=True, positions=tuple(positions))
    found, is_all = chosen(db, queue, _wanted(change, fields))
    return Preview(change, len(found), is_all=is_all, positions=())


def apply(db: Database, queue: Queue, name: str, fields: Fields, positions: list[str]) -> int:
    """Make a change; return how many things it changed.

    Raises:
        ValueError: the form names no items, or wrong ones; nothing was changed.
    """
    change = change_named(name)
    if change.of != "items":
        return change.apply(db, queue, fields)
    if positions:
        return change.apply(db, queue, _parsed(positions), fields)
    most = fields.get("most", "")
    if not most.isdecimal() or not 0 < int(most) <= MOST_CHOSEN:
        raise ValueError("The form does not say how many items were previewed. Begin with the preview.")
    return change.apply(db, queue, chosen(db, queue, _wanted(change, fields), int(most))[0], fields)


def _wanted(change: PageChange, fields: Fields) -> WantedItems:
    state = fields.get("state", "")
    if state not in change.states:
        raise ValueError(f"{change.title} takes items that are {' or '.join(change.states)}, not {state[:40]!r}.")
    wanted = WantedItems(state, fields.get("where", ""), fields.get("text", ""), fields.get("error", ""))
    if not (wanted.where or wanted.text or wanted.error or fields.get("all") == "yes"):
        raise ValueError("No item is chosen. Choose some, give a condition, or choose all.")
    return wanted


def _parsed(positions: list[str]) -> list[Position]:
    return [Position.parse(text) for text in dict.fromkeys(positions)]


def seconds(text: str) -> float:
    """Return a number of seconds.

    Raises:
        ValueError: it is none, or less than 0.
    """
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 10 * 365 * 86_400:
        raise ValueError(f"The delay is a number of seconds, 0 or more, not {text[:40]!r}.")
    return found
