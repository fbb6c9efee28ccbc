"""What an item's end sets off: its outcome, and its follow-ups. `fdbqueue.moves.ends` calls it."""

from __future__ import annotations

import time
from contextlib import suppress

from fdbqueue import FormatError
from fdbqueue.base.times import HELD_US
from fdbqueue.lowlevel import Layout, Notes, Transaction, count
from fdbqueue.moves.ends import OutcomeRecord, pull
from fdbqueue.stored.shapes import Due

from ..leases import Disposition
from ..leases.timers import Firing, Reads, Timer, TimerKind, come_back


def end_outcome(
    tr: Transaction,
    layout: Layout,
    packed: bytes,
    notes: Notes,
    how: str,
    *,
    result: bytes = b"",
    error: str = "",
    now_us: int | None = None,
) -> None:
    """Write the outcome of an item that leaves the queue or dies, and release or drop its follow-ups. All blind writes.

    Args:
        how: how it ends.
        result: its encoded result, if it is done.
        error: why it ends, if it is not.
        now_us: the time in microseconds; None: the wall clock.
    """
    at_us = time.time_ns() // 1_000 if now_us is None else now_us
    if notes.keep_s and how != "purged":  # a purged item ended when it died
        until_us = at_us + notes.keep_s * 1_000_000
        record = OutcomeRecord(how=how, result=result, error=error, ended_at_us=at_us, until_us=until_us)
        tr.set(layout.completions.key(packed), record.encode())
        tr.set(layout.timer_key(until_us, packed, Due.RESULT), b"")
        count(tr, layout, outcomes=1)
    if how != "dead":  # the follow-ups of a dead letter wait until it is redriven or purged
        pull(tr, notes.then, Due.GO if how == "done" else Due.DROP)


async def _forget_outcome(firing: Firing, timer: Timer, reads: Reads) -> None:
    # Without a read: an item that comes back clears its timer, and conflicts with this transaction.
    firing.tr.add_read_conflict_key(timer.key)
    OutcomeRecord.remove(firing.tr, firing.layout, timer.packed, timer.at_us)
    firing.moves.any = True


async def _fire_follow_up(firing: Firing, timer: Timer, reads: Reads) -> None:
    """Release a follow-up, or drop it."""
    if (release := firing.retry.release) is not None:
        with suppress(FormatError):  # left to the newer version that wrote the follow-up
            await release(firing.tr, firing.moves, timer.position, timer.kind, firing.now_us)
            firing.clear(timer)
            firing.stale = True
        return
    found = await firing.find(timer, reads, lambda notes: notes.held)
    if found is None:
        return
    firing.clear(timer)
    if timer.kind == Due.GO:
        come_back(firing, timer, found, delay_us=found.notes.visible_at_us - HELD_US)
        return
    firing.moves.leave_delayed(timer.packed, found.notes)
    firing.moves.vanish(timer.packed, found.stored, "deleted")
    firing.moved(timer, found, Disposition.deleted)


KINDS = {
    Due.RESULT: TimerKind(_forget_outcome),
    Due.GO: TimerKind(_fire_follow_up, ("delayed",)),
    Due.DROP: TimerKind(_fire_follow_up, ("delayed",)),
}
"""The kinds of timers of this layer."""
