"""Append items that come encoded, each with a session, a level and times of its own. Spark's sinks do."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple, TypeAlias

from fdbqueue.lowlevel import Notes, Transaction, started

from ...leases.enqueueing import Encoded
from .._sessions import Sessions
from ..session.states import States
from .working import Working


class SessionRow(NamedTuple):
    """An item of a session, as it is stored."""

    name: bytes
    """The session's packed name."""
    level: int
    stored: bytes
    """Its envelope."""
    chunks: list[bytes]
    notes: Notes


Terms: TypeAlias = tuple[int, Notes]
"""A level and notes."""


async def append_rows(tr: Transaction, sessions: Sessions, items: Iterable[SessionRow]) -> None:
    """Append items to their sessions. Items of one level of a session keep their order.

    Raises:
        SessionClosed: a session is being removed.

    *Conflicts:* and *Cost:* as `Sessions.enqueue_many`, once for each run of items of a session with the same terms.
    """
    working = Working(sessions.queue, sessions.line, States(sessions.queue, "bytes"), None)
    for wave in _waves(items):
        # No two groups of a wave have a session in common, so they may be under way at once.
        under_way = [started(working.enter(tr, some, level)) for (level, _), some in wave.items()]
        for ((level, notes), some), entering in zip(wave.items(), under_way, strict=True):
            await working.append(tr, items=some, level=level, notes=notes, entering=entering)


def _waves(items: Iterable[SessionRow]) -> list[dict[Terms, list[Encoded]]]:
    """Return groups of items with the same terms. The n-th run of each session is in the n-th wave."""
    waves: list[dict[Terms, list[Encoded]]] = []
    of_sessions: dict[bytes, list[SessionRow]] = {}
    for item in items:
        of_sessions.setdefault(item.name, []).append(item)
    for own in of_sessions.values():
        own.sort(key=lambda item: item.level)  # the order matters within a level only
        for number, (terms, run) in enumerate(groupby(own, key=lambda item: (item.level, item.notes))):
            if number == len(waves):
                waves.append({})
            some = waves[number].setdefault(terms, [])
            some += [Encoded(item.stored, item.chunks, None, item.name) for item in run]
    return waves
