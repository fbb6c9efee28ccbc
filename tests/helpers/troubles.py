"""Troubles to plant: one of each kind, in any queue, alone or with others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from fdbqueue import Queue
from fdbqueue.layers import Leases, Sessions, Subscriptions
from fdbqueue.layers.schedules import Plan, Schedules, rule_of
from fdbqueue.stored.layout import Layout, name_of
from fdbqueue.stored.settings import Mark, keys_of_marks, pack_mark

HOUR = 3_600.0


def an_hour_ago() -> float:
    return time.time() - HOUR


def in_an_hour() -> float:
    return time.time() + HOUR


def _many_attempts(db: Any, queue: Queue[Any]) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "tries")
    for delay in (0.0, 0.0, HOUR):
        lease = leases.lease(db)
        assert lease
        leases.nack(db, lease, delay=delay, error="no answer")


def _dead_letters(db: Any, queue: Queue[Any]) -> None:
    leases = Leases(queue, max_attempts=1)
    leases.enqueue(db, "dies")
    lease = leases.lease(db)
    assert lease
    leases.nack(db, lease, error="no such box")


def _fail_in_session(db: Any, queue: Queue[Any], session: str, **rules: Any) -> None:
    sessions: Sessions[Any] = Sessions(queue, max_attempts=1, **rules)
    sessions.enqueue(db, "fails", session=session)
    lease = sessions.lease(db)
    assert lease
    sessions.nack(db, lease, error="stock is negative")


def _blocked_session(db: Any, queue: Queue[Any]) -> None:
    _fail_in_session(db, queue, "Bob", on_dead="block")


def _session_dead_letters(db: Any, queue: Queue[Any]) -> None:
    _fail_in_session(db, queue, "Cleo")


def _long_wait(db: Any, queue: Queue[Any]) -> None:
    Sessions(queue).enqueue(db, "waits", session="Dan", delay=HOUR)


def _paused_session(db: Any, queue: Queue[Any]) -> None:
    sessions: Sessions[Any] = Sessions(queue)
    sessions.enqueue(db, "stays", session="Eve")
    sessions.pause(db, "Eve")


def _stopped_schedule(db: Any, queue: Queue[Any]) -> None:
    def enqueues(*_: Any) -> Any:
        raise AssertionError("no worker runs")

    plan = Plan("clean", rule_of("", every=60.0), "clean_up", enqueues)
    Schedules(queue, an_hour_ago).note_plans(db, [plan])


def _suspended_subscription(db: Any, queue: Queue[Any]) -> None:
    Subscriptions(queue).subscribe(db, "red").suspend(db)


def _overdue_timers(db: Any, queue: Queue[Any]) -> None:
    Leases(queue, clock=an_hour_ago).enqueue(db, "comes", delay=60.0)


def _expired_leases(db: Any, queue: Queue[Any]) -> None:
    leases = Leases(queue, clock=an_hour_ago)
    leases.enqueue(db, "leased")
    assert leases.lease(db, duration=5.0)


def _no_consumer(db: Any, queue: Queue[Any]) -> None:
    Leases(queue, clock=an_hour_ago).enqueue(db, "lies")


def _clock_ahead(db: Any, queue: Queue[Any]) -> None:
    Leases(queue, clock=in_an_hour).enqueue(db, "ahead")


def _foreign_key(db: Any, queue: Queue[Any]) -> None:
    db[queue.layout.timers.pack((1, "no timer"))] = b""


def _name_within(db: Any, queue: Queue[Any]) -> None:
    # An enqueue refuses to register such a name. An older version of the library did not.
    name = name_of(queue.layout.prefix)
    assert isinstance(name, tuple)
    db[Layout(name[:-1]).catalogue_key] = bytes(db[queue.layout.catalogue_key])


def _at_head(db: Any, queue: Queue[Any], stored: bytes) -> None:
    db[queue.layout.available.key(b"\x14\x01aaaaaaaa\x00")] = stored


def _unreadable(db: Any, queue: Queue[Any]) -> None:
    _at_head(db, queue, b"\x00 damaged")


def _newer_format(db: Any, queue: Queue[Any]) -> None:
    _at_head(db, queue, b"\xf0 of a newer version")


def _full_quota(db: Any, queue: Queue[Any]) -> None:
    Leases(queue).enqueue(db, "fills", delay=HOUR)
    queue.set_quota(db, 1)


def _paused_queue(db: Any, queue: Queue[Any]) -> None:
    queue.pause(db, by="Ann", reason="stocktaking")


def _rename_under_way(db: Any, queue: Queue[Any]) -> None:
    mark = Mark(old=queue.layout.prefix, new=Layout("elsewhere").prefix, at_us=int(an_hour_ago() * 1e6))
    for key in keys_of_marks(queue.layout):
        db[key] = pack_mark(mark)


PLANTS: dict[str, Callable[[Any, Queue[Any]], None]] = {
    "many_attempts": _many_attempts,
    "dead_letters": _dead_letters,
    "blocked_session": _blocked_session,
    "session_dead_letters": _session_dead_letters,
    "long_wait": _long_wait,
    "paused_session": _paused_session,
    "stopped_schedule": _stopped_schedule,
    "suspended_subscription": _suspended_subscription,
    "overdue_timers": _overdue_timers,
    "expired_leases": _expired_leases,
    "no_consumer": _no_consumer,
    "clock_ahead": _clock_ahead,
    "full_quota": _full_quota,
    "foreign_key": _foreign_key,
    "name_within": _name_within,
    "unreadable": _unreadable,
    "newer_format": _newer_format,
    "paused_queue": _paused_queue,
    "rename_under_way": _rename_under_way,
}
"""What plants each kind, in an order in which none undoes an earlier one: those that lease come first."""
NEVER_TOGETHER = {
    frozenset(pair)
    for pair in (
        ("unreadable", "newer_format"),  # there is one first item
        ("no_consumer", "paused_queue"),  # a paused queue needs none
        ("paused_queue", "rename_under_way"),  # both have the same key
        ("full_quota", "rename_under_way"),
        # A quota counts no items of sessions, and is refused beside them.
        *(("full_quota", kind) for kind in ("blocked_session", "session_dead_letters", "long_wait", "paused_session")),
    )
}


def plant(db: Any, queue: Queue[Any], kinds: Iterable[str]) -> None:
    """Plant troubles of these kinds in a queue, whose name has two parts."""
    queue.register(db)
    for kind in PLANTS:
        if kind in kinds:
            PLANTS[kind](db, Queue(queue.layout.space, codec="json"))  # its object knows no policy of another plant
