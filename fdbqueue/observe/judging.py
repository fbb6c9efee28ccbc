"""Find the troubles of a queue in the rows that were read of it. No other place decides what a trouble is.

Each function of `_FINDERS` looks for one kind of trouble. `fdbqueue troubles`, `health`, `queues`, `inspect` and `top`,
the web page, notebooks and the metrics all show what these functions find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import counted, utc
from fdbqueue.engine.api import KeyValue
from fdbqueue.errors import FormatError
from fdbqueue.layers.schedules.schedules import stopped_at
from fdbqueue.layers.sessions import SessionStats
from fdbqueue.layers.sessions.session.records import SessionName
from fdbqueue.layers.sessions.session.records import name_of as session_of
from fdbqueue.layers.subscriptions.records import is_suspended
from fdbqueue.moves.admission import items_in
from fdbqueue.observe.reading import ReadRows
from fdbqueue.reads.queue_rows import or_more
from fdbqueue.reads.trouble import Severity, Trouble
from fdbqueue.stored.catalogue import nested_told
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.items import MANY_ATTEMPTS, Notes, salvaged_notes
from fdbqueue.stored.layout import Layout, described, name_of
from fdbqueue.stored.names import queue_word, session_told, session_word
from fdbqueue.stored.positions import Place
from fdbqueue.stored.settings import Pause, mark_of
from fdbqueue.stored.shapes import Due

GRACE_SECONDS = 5.0
"""A timer counts as late if it is over for so long: consumers look often enough."""
MOMENT_SECONDS = 60.0
"""Consumers that run end a lease within this time, if they have room for its item."""
GONE_SECONDS = 30.0
"""A consumer whose last sign is not older than this may come back: after an outage all of them register again."""
OLD_SECONDS = 60.0
"""If an item has waited for so long, and there is no consumer, that is worth a look."""
LONG_WAIT_SECONDS = 600.0
"""A session that waits for longer is worth a look."""
FIRST_ITEM = "The first item"
"""The begin of the sentence about a first item that can't be read."""
MOST_ERROR = 120


@dataclass(frozen=True, slots=True)
class Limits:
    """What still counts as well."""

    age_s: float | None = None
    """The age of the oldest available item; None: any."""
    commit_s: float = 2.0
    """The time of a commit. Only `health` measures it."""
    skew_s: float = 5.0
    """How far a stored time may be ahead of this clock."""


@dataclass(slots=True)
class QueueFigures:
    """The figures of one queue at one time."""

    queue: str
    """Its name, as the command line takes it."""
    rows: ReadRows = field(repr=False, compare=False)
    """What was read of it."""
    now: float = 0.0
    """When it was read, in seconds since 1970."""
    limits: Limits = field(default_factory=Limits)
    stats: Stats | None = None
    """Its plain items by state, and the totals; None: they can't be read."""
    levels: Mapping[int, int] = field(default_factory=dict)
    """Available items by level."""
    enqueued_at: float | None = None
    """When the first of the items that are next was enqueued, also of sessions; None: that is not stored, or there is
    none."""
    seen_since: float | None = None
    """Since when a first item without a stored time is known to be there, by earlier reads."""
    oldest_age_s: float | None = None
    """The time that the first available item has been in the queue, or that of a session that is next. Of an item that
    stores no time it is known only from earlier reads, and at least. None without an item, or if nothing is known."""
    ahead_s: float = 0.0
    """By how many seconds the time of its first or last available item is ahead of the clock that was given."""
    late: Sequence[tuple[float, str]] = ()
    """When each timer was due that has not fired for 5 seconds, and its kind, "" for a foreign key; up to 100."""
    requests: int = 0
    """Calls that wait for items, up to 200."""
    wanted: int = 0
    """Items that they want."""
    consumers: frozenset[str] = frozenset()
    """Consumers that wait for items, or have some: those that a bounded look has found."""
    last_seen: float = 0.0
    """When the newest request or lease ends or has ended; 0: there is none."""
    died: int = 0
    """Items that became dead letters in total, also those that were redriven since."""
    sessions: SessionStats | None = None
    """Its sessions; None: it never had any."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """About how many items each subscription has yet to look at."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """How many items each stream has yet to ack: those of its open batches, and the available ones."""
    paused: bool = False
    problem: str = ""
    """What could not be read; "" if all could."""
    is_newer: bool = False
    """Whether a newer version of the library wrote that."""
    troubles: tuple[Trouble, ...] = ()
    """What is wrong with it."""

    @property
    def dead(self) -> int:
        """Dead letters among its plain items."""
        return 0 if self.stats is None else self.stats.dead

    @property
    def available(self) -> int:
        """Items that a consumer would get: plain ones, and sessions in the line."""
        plain = 0 if self.stats is None else self.stats.available
        return plain + (0 if self.sessions is None else self.sessions.ready)

    @property
    def stored_age_s(self) -> float | None:
        """The time since `enqueued_at`."""
        return None if self.enqueued_at is None else max(0.0, round(self.now - self.enqueued_at, 6))

    @property
    def overdue(self) -> int:
        """Late timers: nobody works here."""
        return len(self.late)

    @property
    def stuck(self) -> int:
        """Leases among them: their consumers have died, and no call has ended them."""
        return sum(kind == Due.LEASE for _, kind in self.late)

    @property
    def running(self) -> int:
        """How many consumers wait for items or have some, as far as a bounded look sees."""
        return max(len(self.consumers), self.requests)

    @property
    def layout(self) -> Layout:
        """The queue's keys."""
        return self.rows.own.layout

    @property
    def shell(self) -> str:
        """The queue's name as it is typed in a shell."""
        return queue_word(name_of(self.layout.prefix))

    @property
    def name(self) -> str:
        """The queue's name in Python."""
        return described(name_of(self.layout.prefix))

    @property
    def pause(self) -> Pause | None:
        """The pause of the queue; None: it is not paused, or is being renamed."""
        with suppress(FormatError):  # then `told_pause` says it
            if mark_of(self.rows.pause) is not None:
                return None
        return self.rows.told_pause

    @property
    def may_have_consumers(self) -> bool:
        """Whether a consumer runs, or was there a moment ago."""
        return bool(self.running) or self.last_seen > self.now - GONE_SECONDS

    def trouble(
        self,
        kind: str,
        text: str,
        *,
        step: str = "",
        severity: Severity | None = None,
        named: Any = None,
        position: Position | None = None,
        **more: Any,
    ) -> Trouble:
        """Return a trouble of this queue.

        Args:
            step: the row of `STEPS`; "": that of its kind.
            severity: how bad it is; None: as that row says.
            named: the session or subscription that its next step names.
        """
        usual, command, method = STEPS[step or kind]
        item = "" if position is None else position.text
        return Trouble(
            kind,
            severity or usual,
            self.queue,
            text,
            command=command.format(self.shell, name="" if named is None else session_word(named), item=item),
            method=method.format(self.name, name=repr(named), item=repr(item)),
            position=position,
            **more,
        )


STEPS: Mapping[str, tuple[Severity, str, str]] = {
    "unreadable": ("problem", "fdbqueue check {}", "fdbqueue.check(db, Queue({}))"),
    "unreadable item": (
        "problem",
        "fdbqueue bury {} {item}",
        "Leases(Queue({})).dead.bury(db, Position.parse({item}))",
    ),
    "unreadable key": (
        "problem",
        "fdbqueue check {} --remove-foreign",
        "fdbqueue.check(db, Queue({}), remove_foreign=True)",
    ),
    "unreadable session": (
        "problem",
        "fdbqueue sessions {} --resume {name}",
        "Sessions(Queue({})).resume(db, {name})",
    ),
    "newer_format": ("problem", "fdbqueue --version", "fdbqueue.__version__"),
    "clock_ahead": ("problem", "fdbqueue inspect {}", "Queue({}).inspect(db)"),
    "blocked_session": ("problem", "fdbqueue sessions {} --items {name}", "Sessions(Queue({})).dead(db, {name})"),
    "full_quota": ("problem", "fdbqueue quota {}", "Queue({}).set_quota(db, …)"),
    "unreadable quota": ("problem", "fdbqueue quota {}", "Queue({}).quota(db)"),
    "expired_leases": ("problem", "fdbqueue watchdog {} --once", "Watchdog(Leases(Queue({}))).sweep(db)"),
    "stopped_schedule": ("problem", "fdbqueue schedules {}", "Schedules(Queue({}), time.time).list(db)"),
    "name_within": ("problem", "fdbqueue rename {} NEW", "fdbqueue.rename(db, {}, …)"),
    "old_item": ("problem", "fdbqueue inspect {}", "Queue({}).inspect(db)"),
    "dead_letters": ("warning", "fdbqueue dead {} --by-error", "Leases(Queue({})).dead.browse(db)"),
    "session_dead_letters": ("warning", "fdbqueue sessions {}", "Sessions(Queue({})).list(db)"),
    "no_consumer": ("warning", "fdbqueue inspect {}", "Queue({}).inspect(db)"),
    "overdue_timers": ("warning", "fdbqueue watchdog {} --once", "Watchdog(Leases(Queue({}))).sweep(db)"),
    "many_attempts": ("warning", "fdbqueue inspect {}", "Queue({}).inspect(db)"),
    "long_wait": (
        "warning",
        "fdbqueue sessions {} --status waiting",
        "Sessions(Queue({})).list(db, status='waiting')",
    ),
    "foreign_key": ("warning", "fdbqueue check {}", "fdbqueue.check(db, Queue({}))"),
    "paused_queue": ("note", "fdbqueue resume {}", "Queue({}).resume(db)"),
    "paused_session": ("note", "fdbqueue sessions {} --resume {name}", "Sessions(Queue({})).resume(db, {name})"),
    "suspended_subscription": (
        "note",
        "fdbqueue subscriptions {}",
        "Subscriptions(Queue({})).open({name}).resume(db)",
    ),
}
"""How bad a trouble of each kind is, and what to do next, in a shell and in Python: {} is the queue, {name} the session
or subscription, {item} the position of the item."""


def judged(seen: QueueFigures) -> tuple[Trouble, ...]:
    """Return the troubles of a queue, one of each kind at most."""
    return tuple(found for find in _FINDERS if (found := find(seen)) is not None)


def _unreadable(seen: QueueFigures) -> Trouble | None:
    if not seen.problem:
        return None
    kind, step, named, position, since = "unreadable", "", None, None, None
    if seen.rows.first and seen.problem.startswith(FIRST_ITEM):
        first = seen.rows.first[0]
        position = _position(seen.layout.available, first)
        step = "unreadable key" if position is None else "unreadable item"
        since = _time(salvaged(first).enqueued_at_us)
    if seen.rows.damaged and seen.problem == seen.rows.problem:
        step, named, position, since = "unreadable session", session_of(seen.rows.damaged), None, None
    if seen.is_newer:
        kind = step = "newer_format"
    return seen.trouble(kind, seen.problem, step=step, named=named, session=named, position=position, since=since)


def _clock_ahead(seen: QueueFigures) -> Trouble | None:
    if seen.ahead_s <= seen.limits.skew_s:
        return None
    told = f"An item was enqueued {seen.ahead_s:,.1f} s ahead of this clock. Set the clocks of the machines by NTP."
    return seen.trouble("clock_ahead", told)


def _blocked_session(seen: QueueFigures) -> Trouble | None:
    blocked = seen.rows.blocked
    if not blocked:
        return None
    first = blocked[0]
    name, dead = session_of(first.name), first.counts.get("dead", 0)
    waiting = max(0, items_in(first.counts) - dead)
    told = f"{_which('session', len(blocked), name, 'blocked')}: {counted(waiting, 'item waits', 'items wait')} in it"
    letter = salvaged(first.dead[0]) if first.dead else None
    if letter is not None:
        told += f" behind {counted(max(1, dead), 'dead letter')}{_error(letter)}"
    since = None if letter is None else _time(letter.died_at_us)
    return seen.trouble("blocked_session", f"{told}.", named=name, session=name, many=len(blocked), since=since)


def _full_quota(seen: QueueFigures) -> Trouble | None:
    read = seen.rows
    try:
        quota = read.quota
    except FormatError as error:
        return seen.trouble("full_quota", f"No item can be enqueued: {error}", step="unreadable quota")
    if quota is None:
        return None
    there = items_in(read.counts or {})
    full_items = quota.items is not None and read.counts is not None and there >= quota.items
    full_bytes = quota.size_bytes is not None and (read.size_bytes or 0) >= quota.size_bytes
    if not full_items and not full_bytes:
        return None
    has = f"{there:,} items" if full_items else f"about {read.size_bytes or 0:,} bytes"
    wait = quota.when_full == "wait"
    then = "producers wait" if wait else "producers are refused"
    told = f"The quota is used up, and {then}: it has {has}, and may have {quota.text.rpartition(',')[0]}."
    return seen.trouble("full_quota", told, severity="warning" if wait else None, many=there if full_items else 1)


def _expired_leases(seen: QueueFigures) -> Trouble | None:
    late = [at for at, kind in seen.late if kind == Due.LEASE]
    return _late(seen, "expired_leases", late, "lease has expired", "leases have expired")


def _overdue_timers(seen: QueueFigures) -> Trouble | None:
    late = [at for at, kind in seen.late if kind not in (Due.LEASE, "")]
    return _late(seen, "overdue_timers", late, "timer is overdue", "timers are overdue")


def _late(seen: QueueFigures, kind: str, late: Sequence[float], one: str, many: str) -> Trouble | None:
    if not late:
        return None
    told = counted(len(late), one, or_more(seen.overdue) + many)
    severity, then = _who_ends(seen, STEPS[kind][0], min(late), "it" if len(late) == 1 else "them")
    return seen.trouble(kind, told + then, severity=severity, many=len(late), since=min(late))


def _who_ends(seen: QueueFigures, alone: Severity, since: float, them: str) -> tuple[Severity, str]:
    """Return how bad late timers are, and the end of the sentence about them: whether a consumer will end them."""
    if not seen.may_have_consumers:
        return alone, f", and nobody ends {them}: start a consumer, or fire the due timers once."
    if not seen.running:
        return "note", ". A consumer was here a moment ago: look again in a minute."
    run = counted(seen.running, "consumer runs", "consumers run")
    if seen.now - since <= MOMENT_SECONDS:
        return "note", f". {run} and will end {them} in a moment."
    return alone, f". {run} and did not end {them}: busy, or the queue is paused."


def _stopped_schedule(seen: QueueFigures) -> Trouble | None:
    now_us, found = int(seen.now * 1e6), []
    for (name,), row in seen.layout.own_rows("schedule", seen.rows.schedules):
        with suppress(FormatError):  # `_unreadable` tells of it
            at = stopped_at(seen.layout, row.key, row.value, now_us)
            if at is not None:
                found.append((at, name))
    if not found:
        return None
    since, first = min(found)
    told = _which("schedule", len(found), first, "stopped")
    told += ": its tick was not enqueued. Start a worker, or remove it."
    return seen.trouble("stopped_schedule", told, many=len(found), since=since, schedule=first)


def _name_within(seen: QueueFigures) -> Trouble | None:
    if not seen.rows.above:
        return None
    return seen.trouble("name_within", f"{nested_told(seen.layout.prefix, seen.rows.above)} Rename one of them.")


def _old_item(seen: QueueFigures) -> Trouble | None:
    most, since = seen.limits.age_s, seen.enqueued_at or seen.seen_since
    if most is None or since is None or seen.now - since <= most:
        return None
    told = f"The first item has waited {seen.now - since:,.0f} s, more than {most:g} s."
    position = _position(seen.layout.available, seen.rows.first[0]) if seen.rows.first else None
    return seen.trouble("old_item", told, since=since, position=position)


def _dead_letters(seen: QueueFigures) -> Trouble | None:
    if seen.dead <= 0:
        return None
    letter = salvaged(seen.rows.dead[0]) if seen.rows.dead else None
    since = None if letter is None else _time(letter.died_at_us)
    told = f"{counted(seen.dead, 'dead letter')}{_error(letter)}."
    return seen.trouble("dead_letters", told, many=seen.dead, since=since)


def _session_dead_letters(seen: QueueFigures) -> Trouble | None:
    number = 0 if seen.rows.sessions is None else seen.rows.sessions.dead
    # Those of blocked sessions are told with the block.
    number -= sum(one.counts.get("dead", 0) for one in seen.rows.blocked)
    if number <= 0:
        return None
    return seen.trouble("session_dead_letters", f"{counted(number, 'dead letter')} in sessions.", many=number)


def _no_consumer(seen: QueueFigures) -> Trouble | None:
    if seen.available <= 0 or seen.may_have_consumers or seen.pause is not None:
        return None
    if seen.enqueued_at is not None and seen.now - seen.enqueued_at < OLD_SECONDS:
        return None
    ready = 0 if seen.sessions is None else seen.sessions.ready
    told = [counted(plain, "item is available", "items are available")] if (plain := seen.available - ready) else []
    told += [counted(ready, "session is ready", "sessions are ready")] if ready else []
    text = f"{' and '.join(told)}, and no consumer waits or has one. Is a consumer running?"
    # Without a stored time it may be a moment.
    severity: Severity | None = "note" if seen.enqueued_at is None else None
    since = seen.enqueued_at or seen.seen_since
    return seen.trouble("no_consumer", text, severity=severity, many=seen.available, since=since)


def _many_attempts(seen: QueueFigures) -> Trouble | None:
    read, layout = seen.rows, seen.layout
    rows = [*read.first, *read.leased, *read.delayed, *read.first_of_sessions]
    row = max(rows, key=lambda one: salvaged(one).attempt, default=None)
    if row is None or (notes := salvaged(row)).attempt < MANY_ATTEMPTS:
        return None
    # An item of a session is not at a place of the queue's own.
    places = (layout.available, layout.leased, layout.delayed)
    place = next((one for one in places if one.begin <= row.key < one.end), None)
    position = None if place is None else _position(place, row)
    told = f"An item is at attempt {notes.attempt}{_error(notes)}."
    return seen.trouble("many_attempts", told, since=_time(notes.enqueued_at_us), position=position)


def _long_wait(seen: QueueFigures) -> Trouble | None:
    waits = seen.rows.waits
    if waits is None or waits.until_us / 1e6 <= seen.now + LONG_WAIT_SECONDS:
        return None
    name = session_of(waits.pointer.name)
    told = f"The session {session_told(name)} waits until {utc(waits.until_us / 1e6)} UTC."
    return seen.trouble("long_wait", told, session=name)


def _foreign_key(seen: QueueFigures) -> Trouble | None:
    read, layout = seen.rows, seen.layout
    number = read.foreign + sum(kind == "" for _, kind in seen.late)
    for family, found in (("schedule", read.schedules), ("subscriptions", read.subscriptions)):
        number += sum(layout.parts(family, row.key) is None for row in found)
    if not number:
        return None
    which = counted(number, "key is not", "keys are not")
    told = f"{which} the library's. A check names them, and can remove them."
    return seen.trouble("foreign_key", told, many=number)


def _rename_under_way(seen: QueueFigures) -> Trouble | None:
    mark = None
    with suppress(FormatError):
        mark = mark_of(seen.rows.type)
    if mark is None or mark.done:
        return None
    old, new = (name_of(prefix) for prefix in (mark.old, mark.new))
    return Trouble(
        "rename_under_way",
        "warning",
        seen.queue,
        f"{mark.text}, and calls are refused meanwhile. If its process was killed, finish it.",
        command=f"fdbqueue rename {queue_word(old)} {queue_word(new)}",
        method=f"fdbqueue.rename(db, {described(old)}, {described(new)})",
        since=mark.at_us / 1e6,
    )


def _paused_queue(seen: QueueFigures) -> Trouble | None:
    pause = seen.pause
    if pause is None:
        return None
    told = f"It is paused{pause.by and f' by {pause.by}'}{pause.why and f': {pause.why}'}."
    return seen.trouble("paused_queue", told, since=pause.since or None)


def _paused_session(seen: QueueFigures) -> Trouble | None:
    paused = seen.rows.session_pauses
    if not paused:
        return None
    name = session_of(paused[0])
    told = f"{_which('session', len(paused), name, 'paused')}."
    return seen.trouble("paused_session", told, named=name, session=name, many=len(paused))


def _suspended_subscription(seen: QueueFigures) -> Trouble | None:
    layout, found = seen.layout, []
    for (name,), row in layout.own_rows("subscriptions", seen.rows.subscriptions):
        with suppress(FormatError):
            if is_suspended(layout, name, row.value):
                found.append(name)
    if not found:
        return None
    told = f"{_which('subscription', len(found), found[0], 'suspended')}."
    return seen.trouble("suspended_subscription", told, named=found[0], many=len(found), subscription=str(found[0]))


_FINDERS: Sequence[Callable[[QueueFigures], Trouble | None]] = (
    *(_unreadable, _clock_ahead, _blocked_session, _full_quota, _expired_leases, _stopped_schedule, _name_within),
    *(_old_item, _dead_letters, _session_dead_letters, _no_consumer, _overdue_timers, _many_attempts, _long_wait),
    *(_foreign_key, _rename_under_way, _paused_queue, _paused_session, _suspended_subscription),
)


def _position(place: Place, row: KeyValue) -> Position | None:
    """Return the position of an item; None for a foreign key."""
    try:
        return place.position(row.key)
    except FormatError:
        return None


def salvaged(row: KeyValue) -> Notes:
    """Return the notes of a row, as far as they can be read."""
    return salvaged_notes(row.value)[0]


def _error(notes: Notes | None) -> str:
    """Return the first line of an error for a sentence; "" if there is none."""
    line = "" if notes is None else (notes.error.strip().splitlines() or [""])[0]
    return f": {line[:MOST_ERROR].rstrip('.')}" if line else ""


def _time(at_us: int) -> float | None:
    return at_us / 1e6 if at_us else None


def _which(what: str, number: int, first: SessionName, state: str) -> str:
    """Return the begin of a sentence about one or several things, of which it names the first."""
    if number == 1:
        return f"The {what} {session_told(first)} is {state}"
    return f"{number:,} {what}s are {state}, the first is {session_told(first)}"
