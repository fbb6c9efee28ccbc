"""Pauses: while a queue is paused, calls that take items find none. Producers go on, and so do acks.

A read of the pause in each of these calls would cost too much. So a process looks once a second for each queue object,
together with its look for exclusive subscriptions (`exclusive.py`), and again at every call while the queue is paused.
Another process may therefore take items for up to a second more.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fdbqueue.base.reprs import utc
from fdbqueue.engine.api import ReadTransaction, Transaction
from fdbqueue.engine.marker import asks_marker
from fdbqueue.engine.steps import value_of
from fdbqueue.errors import QueuePaused
from fdbqueue.stored.counters import count
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.own_values import decoded
from fdbqueue.stored.rename_marks import mark_of


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a queue, when and why."""

    by: str
    """Who paused it; host name and process id by default."""
    reason: str
    """Why; "" if none was given."""
    since: float
    """When, in seconds by the clock of that process."""

    @property
    def text(self) -> str:
        """The pause in one line."""
        told = f"by {self.by} since {utc(self.since)} UTC" if self.by else f"since {utc(self.since)} UTC"
        return f"{told}: {self.why}" if self.why else told

    @property
    def why(self) -> str:
        """The reason in one line."""
        return " ".join(self.reason.split())


class _StoredPause(msgspec.Struct, frozen=True):
    by: str = msgspec.field(name="b")
    reason: str = msgspec.field(name="r")
    at_us: int = msgspec.field(name="t")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredPause).decode


def write_pause(tr: Transaction, layout: Layout, by: str, reason: str, now_us: int) -> None:
    """Pause a queue, and its sessions. Consumers that wait look again, and learn it."""
    asks_marker(tr)
    for each in (layout, _line(layout)):
        tr.set(each.paused_key, _encode(_StoredPause(by, reason, now_us)))
    span = layout.waiting.range()
    tr.clear_range(span.start, span.stop)


def end_pause(tr: Transaction, layout: Layout) -> None:
    """End a pause, and wake the consumers that wait."""
    for each in (layout, _line(layout)):
        tr.clear(each.paused_key)
        count(tr, each, returned=1)  # waiting consumers watch this counter


async def read_pause(tr: ReadTransaction, layout: Layout) -> Pause | None:
    """Return who paused a queue; None if it is not paused.

    Raises:
        FormatError: this version of the library can't read it.
    """
    value = await value_of(tr.get(layout.paused_key))
    return pause_of(layout, bytes(value)) if value.present() else None


def pause_of(layout: Layout, stored: bytes) -> Pause:
    """Return a stored pause.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return decoded(layout, layout.paused_key, stored, _pause, "It is a pause. Resume the queue.")


def _pause(stored: bytes) -> Pause:
    mark = mark_of(stored)
    if mark is not None:
        return Pause("", mark.text, mark.at_us / 1e6)
    found = _decode(stored)
    return Pause(found.by, found.reason, found.at_us / 1e6)


def paused_error(layout: Layout, pause: Pause) -> QueuePaused:
    """Return the error of a call that a pause refuses."""
    why = f": {pause.why}" if pause.why else ""
    return QueuePaused(
        f"The queue {layout.describe()} is paused, by {pause.by}{why}. Nothing was taken. Call Queue.resume, or wait"
        " until it is resumed.",
        by=pause.by,
        reason=pause.reason,
    )


def _line(layout: Layout) -> Layout:
    """Return the keys of the line of the queue's sessions, whose workers take from there (`layers/sessions`)."""
    return Layout(layout.space["line"])
