"""The head of a subscription: the spans of the queue that it has yet to look at, and how it looks at them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fdbqueue import SubscriptionError
from fdbqueue.engine.steps import finished
from fdbqueue.lowlevel import TAKEN, Future, KeyValue, Layout, Steps, Transaction, rows, started, value_of
from fdbqueue.moves.arrivals import announces, arrivals_since, arrivals_until, span_of
from fdbqueue.stored.counters import read_unannounced
from fdbqueue.stored.items import kept_size_of
from fdbqueue.stored.own_rows import own_rows
from fdbqueue.stored.settings import refuse_renamed

from ..leases import Head
from .records import (
    NO_LOOK,
    SubscriptionPointer,
    SubscriptionRecord,
    pack_record,
    pointer_key,
    read_pointer,
    read_registration,
    registration_key,
)

# Spans: the parts of a queue that a subscription has yet to look at.
#
# Spans are half-open ranges of packed positions, sorted and disjoint. A second look at an item does no harm; a missed
# item does. If there are too many spans, neighbours are merged, together with the gap between them.
#

Span: TypeAlias = tuple[bytes, bytes]

END = b"\xff"
"""Sorts after every packed position."""
MAX_SPANS = 32


def everything() -> list[Span]:
    """Return the spans of a subscription that has not looked at anything yet."""
    return [(b"", END)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans sorted, and merged where they touch."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def behind(spans: Iterable[Span], point: bytes) -> list[Span]:
    """Return the parts of the spans from a point on.

    >>> spans = behind(everything(), b"m")             # all up to there was looked at
    >>> spans = joined([*spans, (b"c", b"d")])         # something came to stand in front
    >>> spans
    [(b'c', b'd'), (b'm', b'\\xff')]
    >>> behind(spans, b"d")
    [(b'm', b'\\xff')]
    """
    return [(max(begin, point), end) for begin, end in spans if end > point]


def few(spans: list[Span]) -> list[Span]:
    """Return at most `MAX_SPANS` spans that cover the given ones; the last has no end and stays the same."""
    while len(spans) > MAX_SPANS:
        pairs = [(spans[at][0], spans[min(at + 1, len(spans) - 2)][1]) for at in range(0, len(spans) - 1, 2)]
        spans = [*pairs, spans[-1]]
    return spans


# A subscription's pointer: the spans that it has yet to look at, and how it looks at them.
#
# For one subscription, the head of the queue is the first items that its selector accepts and that it has not looked
# at. It stores these as spans. When an item becomes available in front, the subscription learns its place from the
# arrivals (`fdbqueue/moves/arrivals.py`) and adds it to the spans. A second look at an item does no harm. If arrivals
# may be missing, the subscription looks at everything.

SCAN_ROWS = 10_000
SCAN_BYTES = 4_000_000
"""About how much one transaction looks at before it stores its progress, and another one goes on."""
PAGE_ROWS = 1_000
PAGE_BYTES = 1_000_000
ARRIVALS_AT_ONCE = 2_000
"""A subscription that has missed this many arrivals looks at everything instead."""
LAG_SECONDS = 60.0
"""After this time without a look, arrivals that a subscription needs may be removed; then it looks at everything."""
TRIM_SECONDS = 1.0
"""Shortest time between two searches for arrivals to remove: a search reads all pointers."""
_WORTH_NOTING = 32  # rows or arrivals: to pass fewer of them again costs less than a commit
_TRIM_CHANCE = 1 / 16

Accepts = Callable[[bytes, bytes], bool]
"""Returns whether the item with this key and value is wanted."""


@dataclass(slots=True)
class Habit:
    """A process's estimates of a subscription's items, to read only about as many items as it needs."""

    rows_per_item: float = 1.0
    """How many items it looks at for each accepted one."""
    row_bytes: float = 5_000.0


class Cursor(Head):
    """The items that are next for one subscription, in one transaction.

    Args:
        layout: the queue's layout.
        name: the subscription's name.
        now_us: the current time.
        habit: the estimates; they are updated.
    """

    def __init__(self, layout: Layout, name: str, *, now_us: int, habit: Habit) -> None:
        super().__init__(layout)
        self._name = name
        self._now_us = now_us
        self._habit = habit
        self.spans: list[Span] = []
        """The spans that it has yet to look at."""
        self._looking: list[Span] = []
        self._reached = b""
        self._pending: list[KeyValue] = []
        self._rows = self._bytes = self._accepted = self._arrivals = 0
        self._took = self._news = False
        self._fresh = True
        """Whether no caller writes in this transaction too."""
        self._pointer = SubscriptionPointer([], 0, 0, 0)
        self._seen = self._unannounced = self._trimmed = 0
        self.accepts: Accepts = lambda key, stored: True
        self._bytes_left: int | None = None
        self.bytes_left: int | None = None
        """Bytes of credit left; None: no limit."""
        self.stuck = False
        """Whether the first item that it wants exceeds its credit."""
        self.more = False
        """Whether it stopped before the end, so that another transaction must go on."""

    async def prepare(self, tr: Transaction, *, fresh: bool) -> SubscriptionRecord:
        """Read the subscription, its pointer, and the arrivals since; return its registration.

        `fresh`: nothing was written in this transaction yet.

        The subscription's own keys are plain reads: of two concurrent consumers of one subscription, one conflicts. The
        rest are snapshot reads. Arrivals in front of a taken item conflict by `take`; other arrivals do no harm.

        Raises:
            SubscriptionError: there is no such subscription. QueueRenamed: the queue has another name now.
            FormatError: the registration or the pointer can't be read.
        """
        self._fresh = fresh
        layout, name = self._layout, self._name
        registered = tr.get(registration_key(layout, name))
        cursor = started(self.look(tr, fresh=fresh))
        stored = await value_of(registered)
        if not stored.present():
            if (kind := await value_of(tr.snapshot.get(layout.type_key))).present():
                refuse_renamed(bytes(kind))
            raise SubscriptionError(
                f"There is no subscription {name!r} of {layout.describe()}: it was never registered, or it"
                " was removed. Subscribe again."
            )
        await cursor
        return read_registration(layout, name, bytes(stored))

    async def look(self, tr: Transaction, *, fresh: bool) -> None:
        """Read the pointer and the arrivals since, like `prepare`, for a reader that is no subscription."""
        layout, name = self._layout, self._name
        pointed = tr.get(pointer_key(layout, name))
        trimmed = tr.snapshot.get(layout.trimmed_key)
        unannounced = started(read_unannounced(tr, layout))
        version = tr.get_read_version()
        stored = await value_of(pointed)
        self._pointer = (
            read_pointer(layout, name, bytes(stored)) if stored.present() else SubscriptionPointer([], 0, NO_LOOK, 0)
        )
        self._trimmed = _number(await value_of(trimmed), "big")
        self._unannounced = await unannounced
        self._seen = await value_of(version)
        await self._look_for_arrivals(tr, fresh)

    async def _look_for_arrivals(self, tr: Transaction, fresh: bool) -> None:
        """Add the arrivals since the pointer was written, or everything if some arrivals may be unknown."""
        pointer = self._pointer
        self.spans, self._news = everything(), True
        if pointer.unannounced != self._unannounced or pointer.seen < self._trimmed:
            return
        if not fresh and await announces(tr, self._layout):
            self._seen = pointer.seen
            return
        found = await rows(tr.snapshot, *arrivals_since(self._layout, pointer.seen), limit=ARRIVALS_AT_ONCE)
        self._arrivals = len(found)
        if len(found) == ARRIVALS_AT_ONCE:
            return
        arrived = [(first, last + b"\x00") for first, last in (span_of(self._layout, row.key) for row in found)]
        self.spans, self._news = joined([*pointer.spans, *arrived]), False

    async def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> list[KeyValue]:
        """Read up to `limit` next items that the selector accepts; fewer at the end, or at the limit of one look."""
        if after is None:
            self._looking, self._bytes_left = self.spans, self.bytes_left
            self._rows = self._bytes = self._accepted = 0
            self.more = False
        else:
            self._looking = behind(self._looking, self._layout.available.packed(after) + b"\x00")
        self._pending = []
        self._reached = self._looking[0][0] if self._looking else END
        for begin, end in self._looking:
            done = await self._look_at(tr, begin, end, limit)
            if not done:
                break
        return list(self._pending)

    async def _look_at(self, tr: Transaction, begin: bytes, end: bytes, limit: int) -> bool:
        """Look at one span, up to `limit` items in all; return whether to go on with the next one."""
        place = self._layout.available
        until = place.end if end == END else place.key(end)
        while True:
            if self._rows >= SCAN_ROWS or self._bytes >= SCAN_BYTES:
                self.more = True
                return False
            wanted = self._page_rows(limit - len(self._pending))
            page = await rows(tr.snapshot, max(place.begin, place.key(begin)), until, limit=wanted)
            if not self._pick(page, limit):
                return False
            if len(page) < wanted:
                self._reached = max(self._reached, begin if end == END else end)
                return True
            begin = self._reached

    def _pick(self, page: list[KeyValue], limit: int) -> bool:
        """Pick the accepted items of a page; return whether to read on."""
        packed_at = len(self._layout.available.prefix)
        accepts = self.accepts
        for row in page:
            self._rows += 1
            self._bytes += len(row.value)
            if accepts(row.key, row.value):
                if self._bytes_left is not None:
                    self._bytes_left -= kept_size_of(row.value)
                    if self._bytes_left < 0:
                        self.stuck = not self._pending
                        self._reached = row.key[packed_at:]
                        return False
                self._accepted += 1
                self._pending.append(row)
                if len(self._pending) == limit:
                    self._reached = row.key[packed_at:] + b"\x00"
                    return False
        if page:
            self._reached = page[-1].key[packed_at:] + b"\x00"
        return True

    def _page_rows(self, items: int) -> int:
        habit = self._habit
        wanted = int(items * habit.rows_per_item * 1.1) + 8
        return max(1, min(wanted, PAGE_ROWS, int(PAGE_BYTES / habit.row_bytes)))

    def came_back(self, packed: Sequence[bytes]) -> None:
        self.spans = joined([*self.spans, *((one, one + b"\x00") for one in packed)])

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Take the first of the items that `first` read.

        Each item is a conflict key: of two transactions that take one item, one commits. An item placed before the
        last of them also conflicts, since this subscription may want it first. Items that others take in front of
        them or between them do not conflict, so subscriptions with different selectors don't disturb each other.
        """
        self.pass_by(taken)
        self.claim(tr, self._layout.available.packed(taken[-1].key))
        for row in taken:
            tr.add_read_conflict_key(row.key)
            tr.clear_range(row.key, row.key + TAKEN)

    def pass_by(self, passed: Sequence[KeyValue]) -> None:
        """Note that the first of the items that `first` read are done."""
        self._took = True
        self._pending = self._pending[len(passed) :]

    def claim(self, tr: Transaction, packed: bytes) -> None:
        """Conflict with any item that is placed before this position until the commit."""
        self._took = True
        tr.add_read_conflict_range(self._layout.arriving, self._layout.arriving + packed + b"\x00")

    def found_nothing(self, tr: Transaction) -> None:
        tr.add_read_conflict_range(self._layout.arriving, self._layout.arriving + END)

    async def finish(self, tr: Transaction) -> bool:
        """Store the progress, if that is worth a write; return whether it was stored."""
        self._learn()
        layout = self._layout
        age_us = self._now_us - self._pointer.at_us
        worth = self._took or self._news or max(self._rows - self._accepted, self._arrivals) >= _WORTH_NOTING
        if not worth and age_us < LAG_SECONDS / 4 * 1e6:
            return False
        point = layout.available.packed(self._pending[0].key) if self._pending else self._reached
        spans = few(behind(self.spans, point))
        pointer = SubscriptionPointer(spans, self._seen, self._unannounced, self._now_us)
        tr.set(pointer_key(layout, self._name), pack_record(pointer))
        if self._news or self._arrivals >= _WORTH_NOTING or (self._arrivals and random.random() < _TRIM_CHANCE):
            await self._trim(tr)
        return True

    async def _trim(self, tr: Transaction) -> None:
        """Remove the arrivals that all subscriptions know, except subscriptions that lag or have never looked.

        This uses snapshot reads and blind writes. No transaction reads arrivals with a conflict. A subscription that
        misses removed arrivals learns so from the trimmed version at the same read version.
        """
        if not self._fresh:
            return
        if await announces(tr, self._layout):
            # Until the commit, a record of this transaction counts as one at its read version. A clear up to that
            # version removes it too, and no subscription would learn of the item. Another transaction will trim.
            return
        await trim_arrivals(tr, self._layout, self._now_us, self._seen, self._trimmed)

    def _learn(self) -> None:
        if self._rows:
            habit = self._habit
            habit.rows_per_item += (self._rows / max(1, self._accepted) - habit.rows_per_item) / 2
            habit.row_bytes += (self._bytes / self._rows + 1 - habit.row_bytes) / 2


async def trim_arrivals(tr: Transaction, layout: Layout, now_us: int, seen: int, trimmed: int) -> None:
    """Remove the arrivals up to the version `seen` that no reader needs any more.

    One slow reader out of a thousand keeps all arrivals. Each of the others would search again in vain, so one
    searches per second.
    """
    looked_us = _number(await value_of(tr.snapshot.get(layout.trimming_key)))
    if 0 <= now_us - looked_us < TRIM_SECONDS * 1e6:  # a future time comes from a clock that is ahead
        return
    tr.set(layout.trimming_key, now_us.to_bytes(8, "little"))
    span = layout.pointers.range()
    found = await rows(tr.snapshot, span.start, span.stop)
    for (name,), row in own_rows(layout, "pointers", found):
        pointer = read_pointer(layout, name, row.value)
        lag_us = max(LAG_SECONDS * 1e6, pointer.keep_us)
        if pointer.unannounced != NO_LOOK and now_us - pointer.at_us < lag_us:
            seen = min(seen, pointer.seen)
    if seen > trimmed:
        tr.clear_range(*arrivals_until(layout, seen))
        tr.byte_max(layout.trimmed_key, seen.to_bytes(8, "big"))


def _number(value: Any, order: Any = "little") -> int:
    return int.from_bytes(bytes(value), order) if value.present() else 0


# The short cut of an exclusive subscription that wants everything: the head of the queue is its pointer.
#
# It is the queue's only subscription, and it always wants the first item next. So it needs no pointer, and producers
# record no arrivals for it. An enqueue that tries delivery has one subscription to ask. It reads the first waiter and
# its own place in parallel.
#
# The fence is the key under which the subscription is registered. A process that takes over the subscription writes
# that key, and so does a new subscription once the owner is gone. Each lease or delivery by the short cut has the key
# among its read conflicts. So of a takeover and an owner's lease at the same time one fails, and a former owner gets
# nothing. The stored pointer always says that nothing was looked at. When the subscription is no longer the sole one,
# it misses no item that came meanwhile.


class ExclusiveHead(Head):
    """The items that are next for a sole subscription, in one transaction.

    Args:
        layout: the queue's layout.
        name: the subscription's name.
        wanted: about how many items to read ahead, before the credit is known.
    """

    def __init__(self, layout: Layout, name: str, *, wanted: int) -> None:
        super().__init__(layout)
        self._key: bytes = layout.subscriptions.pack((name,))
        self._pointer: bytes = layout.pointers.pack((name,))
        self._name = name
        self._wanted = wanted
        self._early: Steps[list[KeyValue]] | None = None
        self._limited = False
        self._bytes_left: int | None = None
        self.bytes_left: int | None = None
        """Bytes of credit left; None: no limit."""
        self.stuck = False
        """Whether the first item exceeds the credit."""
        self.more = False
        """Whether another transaction must go on: never, since this head skips no item."""

    def registration(self, tr: Transaction) -> Steps[SubscriptionRecord | None]:
        """Read the subscription and the first items in parallel; return its registration, or None.

        The read is a snapshot read. Only a transaction that takes or delivers an item depends on it (`fence`). An
        enqueue that finds no waiter does not conflict with the owner.
        """
        registered = tr.snapshot.get(self._key)
        self._early = started(super().first(tr, limit=self._wanted))
        return self._registration(registered)

    async def _registration(self, registered: Future[Any]) -> SubscriptionRecord | None:
        stored = await value_of(registered)
        if not stored.present():
            return None
        registration = read_registration(self._layout, self._name, bytes(stored))
        self._limited = registration.credit is not None or registration.credit_bytes is not None
        return registration

    async def prepare(self, tr: Transaction, *, fresh: bool) -> SubscriptionRecord:
        """Do what `Cursor.prepare` does, without a pointer.

        Raises:
            SubscriptionError: there is no such subscription.
            FormatError: the registration can't be read.
        """
        registration = await self.registration(tr)
        self.fence(tr)
        if registration is None:
            raise SubscriptionError(
                f"There is no subscription {self._name!r} of {self._layout.describe()}: it was removed."
                " Subscribe again."
            )
        return registration

    def fence(self, tr: Transaction) -> None:
        """Make this transaction fail if the subscription gets another owner, or changes, before the commit."""
        tr.add_read_conflict_key(self._key)

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read up to `limit` next items, within the credit for their bytes."""
        early, self._early = self._early, None
        if after is None:
            self._bytes_left = self.bytes_left
            if early is not None and limit <= self._wanted:
                return self._affordable(early, limit, is_first=True)
        return self._affordable(super().first(tr, limit=limit, after=after), limit, is_first=after is None)

    async def _affordable(self, reading: Steps[list[KeyValue]], limit: int, *, is_first: bool) -> list[KeyValue]:
        found = (await reading)[:limit]
        if self._bytes_left is None:
            return found
        for at, row in enumerate(found):
            self._bytes_left -= kept_size_of(row.value)
            if self._bytes_left < 0:
                self.stuck = is_first and not at
                return found[:at]
        return found

    def came_back(self, packed: Sequence[bytes]) -> None:
        if packed:
            self._early = None

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Take the first of the items that `first` read; the conflicts are those of every head, and of credit."""
        self._meet(tr)
        super().take(tr, taken)

    def claim(self, tr: Transaction, packed: bytes) -> None:
        """Conflict with any item that is placed before this position until the commit."""
        self._meet(tr)
        tr.add_read_conflict_range(self._layout.begin, self._layout.available.key(packed))

    def _meet(self, tr: Transaction) -> None:
        """Make two transactions that use limited credit at the same time conflict.

        Other subscriptions conflict on the pointer, which both transactions write. Here the two may take different
        items: one delivers a new item, the other leases an item behind it. Without a conflict each would spend the
        credit that the other spends. The conflict is on a key that no other call reads or writes, so an ack does not
        conflict.
        """
        if self._limited:
            tr.add_read_conflict_key(self._pointer)
            tr.add_write_conflict_key(self._pointer)

    def finish(self, tr: Transaction) -> Steps[bool]:
        """Return False: there is no pointer to write."""
        return finished(False)
