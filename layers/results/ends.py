"""What an item's end sets off: its outcome, and its follow-ups. `fdbqueue.moves.ends` calls it."""

from __future__ import annotations

import time

from fdbqueue.lowlevel import Layout, Notes, Transaction, count
from fdbqueue.moves.outcomes import DEAD, DONE, OutcomeRecord, encode_record, pull
from fdbqueue.stored.layout import DROP, GO, RESULT


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
        tr.set(layout.completions.key(packed), encode_record(record))
        tr.set(layout.timer_key(until_us, packed, RESULT), b"")
        count(tr, layout, outcomes=1)
    if how != DEAD:  # the follow-ups of a dead letter wait until it is redriven or purged
        pull(tr, notes.then, GO if how == DONE else DROP)
