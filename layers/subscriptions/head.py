"""The head of a subscription: the spans of the queue that it has yet to look at, and how it looks at them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fdbqueue import FormatError, Position, Queue, SubscriptionError
from fdbqueue.engine.api import Value
from fdbqueue.lowlevel import (
    TAKEN,
    CheckPart,
    Database,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Steps,
    Transaction,
    pages,
    rows,
    started,
    value_of,
    within,
)
from fdbqueue.reads.check import read_in
from fdbqueue.stored.counters import read_unannounced
from fdbqueue.stored.items import kept_size_of
from fdbqueue.stored.settings import check_renamed

from ..leases import Head
from .records import (
    DISPATCHER,
    NO_LOOK,
    SubscriptionPointer,
    SubscriptionRecord,
    pack_record,
    pointer_key,
    read_pointer,
    record_in,
    registration_key,
)
from .selectors import ItemTest, wanted_by

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


class SubscriptionHead(Head):
    """The items that are next for one subscription, in one transaction.

    For one subscription, the head of the queue is the first items that its selector accepts and that it has not looked
    at. It stores these as spans. When an item becomes available in front, the subscription learns its place from the
    arrivals (`fdbqueue/moves/moves.py`) and adds it to the spans. A second look at an item does no harm. If arrivals
    may be missing, the subscription looks at everything.

    An exclusive subscription that wants everything is the queue's only one, and always wants the first item next: the
    head of the queue is its pointer. So it needs no other, and producers record no arrivals for it. The fence is the
    key under which it is registered. A process that takes over the subscription writes that key, and so does a new
    subscription once the owner is gone. Each lease or delivery has the key among its read conflicts. So of a takeover
    and an owner's lease at the same time one fails, and a former owner gets nothing. The stored pointer always says
    that nothing was looked at. When the subscription is no longer the sole one, it misses no item that came meanwhile.

    Args:
        layout: the queue's layout.
        name: the subscription's name.
        now_us: the current time.
        habit: the estimates; they are updated. None: this transaction has its own.
        exclusive_all: whether it is exclusive and wants everything.
        wanted: about how many items such a subscription reads ahead, before its credit is known.
    """

    def __init__(
        self,
        layout: Layout,
        name: str,
        *,
        now_us: int,
        habit: Habit | None = None,
        exclusive_all: bool = False,
        wanted: int = 1,
    ) -> None:
        super().__init__(layout)
        self._name = name
        self._now_us = now_us
        self._habit = habit or Habit()
        self._exclusive_all = exclusive_all
        self._wanted = wanted
        self._early: Steps[list[KeyValue]] | None = None
        self._limited = False
        """Whether its credit is limited."""
        self.spans = everything()
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
        self.accepts: Accepts | None = None
        """Whether it wants an item; None: it wants all."""
        self._bytes_left: int | None = None
        self.bytes_left: int | None = None
        """Bytes of credit left; None: no limit."""
        self.stuck = False
        """Whether the first item that it wants exceeds its credit."""
        self.more = False
        """Whether it stopped before the end, so that another transaction must go on."""

    def registration(self, tr: Transaction) -> Steps[SubscriptionRecord | None]:
        """Read an exclusive subscription and the first items in parallel; return its registration, or None.

        The read is a snapshot read. Only a transaction that takes or delivers an item depends on it (`fence`). An
        enqueue that finds no waiter does not conflict with the owner.
        """
        registered = tr.snapshot.get(registration_key(self._layout, self._name))
        self._early = started(super().first(tr, limit=self._wanted))
        return self._registration(registered)

    async def _registration(self, registered: Value) -> SubscriptionRecord | None:
        registration = await record_in(self._layout, self._name, registered)
        if registration is not None:
            self._limited = registration.credit is not None or registration.credit_bytes is not None
        return registration

    def fence(self, tr: Transaction) -> None:
        """Make this transaction fail if the subscription gets another owner, or changes, before the commit."""
        tr.add_read_conflict_key(registration_key(self._layout, self._name))

    async def prepare(self, tr: Transaction, *, fresh: bool) -> SubscriptionRecord:
        """Read the subscription, its pointer, and the arrivals since; return its registration.

        `fresh`: nothing was written in this transaction yet.

        The subscription's own keys are plain reads: of two concurrent consumers of one subscription, one conflicts. The
        rest are snapshot reads. Arrivals in front of a taken item conflict by `take`; other arrivals do no harm.

        Raises:
            SubscriptionError: there is no such subscription. QueueRenamed: the queue has another name now.
            FormatError: the registration or the pointer can't be read.
        """
        looking = None
        if self._exclusive_all:
            registration = await self.registration(tr)
            self.fence(tr)
        else:
            registered = tr.get(registration_key(self._layout, self._name))
            looking = started(self.look(tr, fresh=fresh))
            registration = await self._registration(registered)
        if registration is None:
            await check_renamed(tr.snapshot, self._layout)
            raise SubscriptionError(
                f"There is no subscription {self._name!r} of {self._layout.describe()}: it was never registered, or it"
                " was removed. Subscribe again."
            )
        if looking is not None:
            await looking
        return registration

    async def look(self, tr: Transaction, *, fresh: bool) -> None:
        """Read the pointer and the arrivals since, like `prepare`, for a reader that is no subscription."""
        self._fresh = fresh
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
        await self._look_for_arrivals(tr)

    async def _look_for_arrivals(self, tr: Transaction) -> None:
        """Add the arrivals since the pointer was written, or everything if some arrivals may be unknown."""
        pointer = self._pointer
        self.spans, self._news = everything(), True
        if pointer.unannounced != self._unannounced or pointer.seen < self._trimmed:
            return
        if not self._fresh and await _announces(tr, self._layout):
            self._seen = pointer.seen
            return
        found = await rows(tr.snapshot, *self._layout.arrivals_since(pointer.seen), limit=ARRIVALS_AT_ONCE)
        self._arrivals = len(found)
        if len(found) == ARRIVALS_AT_ONCE:
            return
        arrived = [(first, last + b"\x00") for first, last in (self._layout.arrival_of(row.key) for row in found)]
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
            if not await self._look_at(tr, begin, end, limit):
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
            early, self._early = self._early, None
            if early is not None and wanted <= self._wanted:
                page = (await early)[:wanted]
            else:
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
            if accepts is None or accepts(row.key, row.value):
                if self._bytes_left is not None:
                    self._bytes_left -= kept_size_of(row.value)
                    if self._bytes_left < 0:
                        self.stuck = not self._accepted
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
        if self._exclusive_all:
            return items  # it wants each of them
        habit = self._habit
        wanted = int(items * habit.rows_per_item * 1.1) + 8
        return max(1, min(wanted, PAGE_ROWS, int(PAGE_BYTES / habit.row_bytes)))

    def came_back(self, packed: Sequence[bytes]) -> None:
        self._early = None  # timers were fired, which take away items that are over as well
        self.spans = joined([*self.spans, *((one, one + b"\x00") for one in packed)])

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Take the first of the items that `first` read.

        Each item is a conflict key: of two transactions that take one item, one commits. An item placed before the
        last of them also conflicts, since this subscription may want it first. Items that others take in front of
        them or between them do not conflict, so subscriptions with different selectors don't disturb each other. The
        conflicts of an exclusive subscription for all items are those of every head, and of credit.
        """
        if self._exclusive_all:
            self._meet(tr)
            super().take(tr, taken)
            return
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
        if self._exclusive_all:
            self._meet(tr)
            tr.add_read_conflict_range(self._layout.begin, self._layout.available.key(packed))
            return
        self._took = True
        tr.add_read_conflict_range(self._layout.arriving, self._layout.arriving + packed + b"\x00")

    def _meet(self, tr: Transaction) -> None:
        """Make two transactions that use limited credit of an exclusive subscription at the same time conflict.

        Other subscriptions conflict on the pointer, which both transactions write. Here the two may take different
        items: one delivers a new item, the other leases an item behind it. Without a conflict each would spend the
        credit that the other spends. The conflict is on a key that no other call reads or writes, so an ack does not
        conflict.
        """
        if self._limited:
            tr.add_read_conflict_key(pointer_key(self._layout, self._name))
            tr.add_write_conflict_key(pointer_key(self._layout, self._name))

    def found_nothing(self, tr: Transaction) -> None:
        if self._exclusive_all:
            super().found_nothing(tr)
            return
        tr.add_read_conflict_range(self._layout.arriving, self._layout.arriving + END)

    async def finish(self, tr: Transaction) -> bool:
        """Store the progress, if that is worth a write; return whether it was stored."""
        if self._exclusive_all:
            return False
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
            await self.trim(tr)
        return True

    async def trim(self, tr: Transaction) -> None:
        """Remove the arrivals that all subscriptions know, except subscriptions that lag or have never looked.

        This uses snapshot reads and blind writes. No transaction reads arrivals with a conflict. A subscription that
        misses removed arrivals learns so from the trimmed version at the same read version.
        """
        if not self._fresh:
            return
        if await _announces(tr, self._layout):
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
    found = await rows(tr.snapshot, *within(layout.pointers.key()))
    for (name,), row in layout.own_rows("pointers", found):
        pointer = read_pointer(layout, name, row.value)
        lag_us = max(LAG_SECONDS * 1e6, pointer.keep_us)
        if pointer.unannounced != NO_LOOK and now_us - pointer.at_us < lag_us:
            seen = min(seen, pointer.seen)
    if seen > trimmed:
        tr.clear_range(*layout.arrivals_until(seen))
        tr.byte_max(layout.trimmed_key, seen.to_bytes(8, "big"))


def _number(value: Value, order: Literal["little", "big"] = "little") -> int:
    return int.from_bytes(bytes(value), order) if value.present() else 0


# Checks that subscriptions miss no item, and that their credit matches the leases of their consumers.


class SubscriptionCheck(ItemCheck):
    """Compares the pointers and the credit of a queue's subscriptions with its items.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout.
        now_us: the current time.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, now_us: int) -> None:
        self._tr = tr
        self._layout = layout
        self._problems: list[str] = []
        self._wants: dict[str, tuple[list[Span], ItemTest | None]] = {}
        """Of each subscription, the spans that it has yet to look at, and what it wants."""
        self._missed: dict[str, list[Position]] = {}
        self._leased: list[tuple[bytes, str, int]] = []
        """The leased items of subscriptions: packed position, subscription, bytes."""
        found = layout.own_rows("subscriptions", self._rows(layout.subscriptions.range()))
        names = [parts[0] for parts, _ in found]
        found = layout.own_rows("pointers", self._rows(layout.pointers.range()))
        pointers = {parts[0] for parts, _ in found}
        for name in pointers - {*names, DISPATCHER}:
            self._problems.append(f"The pointer of {name!r} belongs to no subscription.")
        for name in set(names) - pointers:
            self._problems.append(f"The subscription {name!r} has no pointer.")
        for name in names:
            try:
                self._prepare(name, now_us)
            except FormatError as error:
                self._problems.append(str(error))

    def _prepare(self, name: str, now_us: int) -> None:
        async def look(tr: Transaction) -> tuple[SubscriptionRecord, list[Span]]:
            head = SubscriptionHead(self._layout, name, now_us=now_us)
            registration = await head.prepare(tr, fresh=False)
            return registration, head.spans

        registration, spans = read_in(self._tr, look)
        if registration.selector is not None and not registration.browser:  # a browser leaves items that it has told of
            self._wants[name] = spans, wanted_by(self._layout, registration)

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note an item that a subscription would miss, and one that a subscription's consumer has."""
        if state == "available":
            for name, (spans, wants) in self._wants.items():
                with suppress(FormatError):  # the check itself reports an item that can't be read
                    passed = not any(begin <= packed < end for begin, end in spans)
                    if passed and (wants is None or wants(row.key, row.value)):
                        self._missed.setdefault(name, []).append(self._layout.available.position(row.key))
        elif state == "leased" and notes is not None and notes.subscription:
            self._leased.append((packed, notes.subscription, kept_size_of(row.value)))

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        missed = [
            f"The item {position} was passed by, though the subscription {name!r} wants it."
            for name, positions in self._missed.items()
            for position in positions
        ]
        return [*self._problems, *missed, *self._wrongly_held()]

    def _wrongly_held(self) -> Iterator[str]:
        """Compare the records of items that subscriptions hold with the leased items."""
        layout = self._layout
        found = layout.own_rows("held", self._rows(layout.held.range()))
        held = {row.key: int.from_bytes(row.value, "little") for _, row in found}
        for packed, name, size_bytes in self._leased:
            if held.pop(layout.held_key(name, packed), None) != size_bytes:
                position = layout.leased.position(layout.leased.key(packed))
                yield f"The item {position} is leased for {name!r}, whose credit does not know."
        for key in held:
            name, position = layout.own_parts("held", key)
            yield f"The credit of {name!r} counts an item that it has not: {position}."

    def _rows(self, span: slice) -> Iterator[KeyValue]:
        for page in pages(self._tr, span.start, span.stop):
            yield from page


def _part(tr: Transaction | Database, queue: Queue) -> SubscriptionCheck:
    return SubscriptionCheck(tr, queue.layout, int(time.time() * 1e6))


CHECK_PART = CheckPart(_part, ("subscriptions",))
"""What subscriptions add to `fdbqueue.check`."""


_WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"  # the transaction's own special keys


async def _announces(tr: Transaction, layout: Layout) -> bool:
    """Return whether this transaction has noted arrivals itself, so that it can no longer read arrivals.

    Its own notes have no versionstamps yet. A read of the range that may hold them fails, and then its commit fails too
    (1036, accessed_unreadable). Its own write conflict ranges can be read.
    """
    own = within(_WRITE_CONFLICTS + layout.arriving)
    return bool(await rows(tr.snapshot, *own, limit=1))
