"""Fetches the copies that one recipient has not fetched yet, in queue order, after it fires due timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fdbqueue.engine.keys import within
from fdbqueue.engine.waiting import until_changed
from fdbqueue.lowlevel import (
    Database,
    Future,
    KeyValue,
    Transaction,
    attempts,
    rows,
    started,
    value_of,
)
from fdbqueue.moves.taking import EXPIRED_LIMIT, ItemRow, Takes, remove

from ..leases import Leases
from ..leases.timers import FIRE_LIMIT, due_timers, fire_due, next_due_us
from ..leases.transitions import Transitions
from ._copies import Copies, Copy

WINDOW = 64
_COME_BACK = ("enqueued", "leased", "delayed", "dead")
"""When an item becomes available, one of these counters changes."""
_AT_LEAST_SECONDS = 0.01


@dataclass(slots=True)
class _Fetched:
    """The work of one fetching transaction."""

    limit: int
    takes: Takes
    moves: Transitions
    cut: bool
    """Whether it stops after it has removed many outdated items."""
    copies: list[Copy] = field(default_factory=list)
    all_seen: bool = False
    """Whether there is no further copy to fetch."""

    @property
    def is_full(self) -> bool:
        """Whether it has reached the limit of the call, or of one transaction."""
        return len(self.copies) >= self.limit or self.takes.stopped or (self.cut and self.takes.over >= EXPIRED_LIMIT)


class Fetched(NamedTuple):
    """The result of one fetching transaction."""

    copies: list[Copy]
    again: bool
    """Whether there were more timers or outdated items than one transaction handles, so that another must look."""


class Fetching:
    """Fetches copies of one queue's items.

    Args:
        leases: the queue's leases, with their clock and their rules for due timers.
    """

    __slots__ = ("_copies", "_layout", "_leases", "_queue")

    def __init__(self, leases: Leases, copies: Copies) -> None:
        self._leases = leases
        self._queue = leases.queue
        self._layout = leases.layout
        self._copies = copies

    async def fetch(self, tr: Transaction, recipient: str, limit: int, *, strict: bool) -> tuple[Fetched, bool]:
        """Fire due timers, then fetch. Also return whether it wrote.

        Args:
            strict: whether to return `again` if more timers are due, and leave the fetch to that transaction.
        """
        now_us = self._leases.now_us()
        due = started(due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT))
        number, _ = await self._copies.numbers(tr, recipient)
        overdue = await due
        moves = Transitions(tr, self._layout)
        haul = _Fetched(limit, Takes(tr, self._queue, now_us), moves, strict)
        try:
            if overdue:
                _, settled = await fire_due(tr, self._layout, moves, overdue, now_us=now_us, retry=self._leases.retry)
                if strict and moves.any and not (settled and len(overdue) < FIRE_LIMIT):
                    return Fetched([], again=True), True
            known = started(_get(tr, self._copies.known_key(number)))
            await self._first_unsent(tr, number, haul)
            await moves.settle()
        finally:
            moves.finish()
        if haul.takes.error is not None and not haul.copies and not (strict and moves.any):
            raise haul.takes.error
        if haul.copies:
            await self._copies.note_fetched(tr, number, haul.copies, await known)
        written = bool(moves.any or haul.copies)
        # Commit the moves and removals first. The next transaction fetches the rest, or raises the error.
        return Fetched(haul.copies, again=strict and written and not haul.copies and not haul.all_seen), written

    async def _first_unsent(self, tr: Transaction, number: int, haul: _Fetched) -> None:
        """Fetch the first unsent copies of available items, up to one that can't be read."""
        prefix = self._copies.prefix(self._layout.unsent, number)
        begin, end = within(prefix)
        while not haul.is_full:
            # A snapshot read, with a conflict range up to the last copy: an enqueue behind it does not conflict.
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            at = 0
            while at < len(found) and not haul.is_full:
                group = found[at : at + haul.limit - len(haul.copies)]
                at += len(group)
                for packed, stored, version in await self._available(tr, number, prefix, group):
                    if not haul.is_full:
                        await self._fetch_one(tr, prefix, packed, stored, version, haul)
            if len(found) < WINDOW:
                haul.all_seen = not haul.is_full
                break
            begin = found[-1].key + b"\x00"
        if haul.all_seen and not haul.copies:
            tr.add_read_conflict_range(prefix, end)

    async def _available(
        self, tr: Transaction, number: int, prefix: bytes, group: list[KeyValue]
    ) -> list[tuple[bytes, bytes, bytes]]:
        """Return packed positions, stored values and versions of the copies whose items are available."""
        reads = []
        for row in group:
            packed = row.key[len(prefix) :]
            version = tr.snapshot.get(self._copies.key(self._layout.copies, number, packed))
            reads.append((packed, tr.get(self._layout.available.key(packed)), version))
        there = []
        for packed, read, version in reads:
            value, copied = await value_of(read), await value_of(version)
            if value.present():  # a leased or delayed item is fetched once it is available again
                there.append((packed, bytes(value), bytes(copied) if copied.present() else b""))
        return there

    async def _fetch_one(
        self, tr: Transaction, prefix: bytes, packed: bytes, stored: bytes, version: bytes, haul: _Fetched
    ) -> None:
        """Fetch one copy, or remove its item if it is over."""
        verdicts = await haul.takes.judge([ItemRow(self._layout.available.key(packed), stored)])
        if not verdicts:
            return
        [verdict] = verdicts
        if verdict.fate != "take":
            remove(haul.moves, verdict, packed, cleared=False)
            return
        item = verdict.item
        tr.add_read_conflict_range(prefix, prefix + packed + b"\x00")
        tr.clear(prefix + packed)
        name = item.position.text + (f"@{version.hex()}" if version else "")
        haul.copies.append(Copy(item.position, item.value, item.headers, name=name))

    async def wait(self, db: Database, recipient: str, seconds: float | None) -> None:
        """Wait until there may be a copy to fetch, or `seconds` have passed."""
        watches, due_us = await attempts(db, partial(self._watch, recipient=recipient))
        if not watches:
            return
        until_due = None if due_us is None else max(_AT_LEAST_SECONDS, (due_us + 1 - self._leases.now_us()) / 1e6)
        await until_changed(watches, seconds, until_due)

    async def _watch(self, tr: Transaction, recipient: str) -> tuple[list[Future[None]], int | None]:
        """Return watches on keys that change when there may be a copy to fetch; none if there is one already."""
        number, _ = await self._copies.numbers(tr, recipient)
        prefix = self._copies.prefix(self._layout.unsent, number)
        begin, end = within(prefix)
        while True:
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            if await self._available(tr, number, prefix, found):
                return [], None
            if len(found) < WINDOW:
                break
            begin = found[-1].key + b"\x00"
        due_us = await next_due_us(tr, self._layout, self._leases.now_us())
        keys = [self._layout.count_key(name) for name in _COME_BACK]
        return [tr.watch(key) for key in (*keys, self._layout.resent_key, self._layout.recipients_key)], due_us


async def _get(tr: Transaction, key: bytes) -> bytes | None:
    value = await value_of(tr.get(key))
    return bytes(value) if value.present() else None
