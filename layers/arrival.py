"""Waiting until a queue may have an item to lease."""

from __future__ import annotations

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, rows, started, within
from fdbqueue.engine.transactional import attempts
from fdbqueue.layout import Layout

from .leases import Leases


def wait_for_arrival(db: Database, leases: Leases, *, longest: float) -> Steps[None]:
    """Wait until something was enqueued or a timer is due, but no longer than `longest` seconds.

    It watches the counter of what was enqueued. An item that another process gives back does not change that one, and
    is noticed after `longest` seconds.

    *Conflicts:* none. *Cost:* two transactions with three reads; nothing while it waits.
    """
    layout = leases.layout
    tr = db.create_transaction()
    watch = tr.watch(layout.count_key("enqueued"))
    try:
        yield tr.commit()
        # Look again: what came before the watch was set wakes nobody. By itself, since a watch adds a read conflict.
        seconds = yield from attempts(db, lambda tr: _seconds_to_wait(tr, layout, leases.now_us()))
        if seconds is None or seconds > 0:
            yield from within(watch, longest if seconds is None else min(seconds, longest))
    finally:
        watch.cancel()


def _seconds_to_wait(tr: Transaction, layout: Layout, now_us: int) -> Steps[float | None]:
    """Return the seconds until the first timer is due; 0 if there is an item already, None if there is neither."""
    span = layout.timers.range()
    item = started(rows(tr.snapshot, layout.begin, layout.end, limit=1))
    timer = started(rows(tr.snapshot, span.start, span.stop, limit=1))
    if (yield from item):
        return 0.0
    for row in (yield from timer):
        return max(0.0, (layout.timer_of(row.key)[0] - now_us) / 1e6)
    return None
