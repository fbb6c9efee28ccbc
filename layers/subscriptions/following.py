"""A browser that stays: it is told of each item that becomes available, and takes none.

It first tells the items that are there when it begins, in the order of the queue. Then it reads the records of arrivals
(`fdbqueue/moves/moves.py`) in commit order, and tells the items at their places. So it also learns of items that
are given back, fall due, or are placed in front of others.
An item that comes again is told again. It is not told of an item that
a consumer takes before the browser has looked.

Its place is the key of the last arrival that it told completely. A named browser stores its place, at most once a
second. It stores the place up to which its caller has asked for more. So after a crash some items are told a second
time, and none is missed. Other readers do not remove arrivals that it has yet to tell, unless it was silent for too
long.

A record of many places names one span, which may have other items in it. A browser remembers the last items that it
told, and does not tell an unchanged one of them again. An enqueue that began before the browser was registered records
nothing. The counters show that, and the browser looks for the item among the last ones of the queue.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Literal, Self, TypeAlias, get_args

from msgspec.structs import replace

from fdbqueue import FormatError, Position, SubscriptionError
from fdbqueue.base.arguments import check_flag
from fdbqueue.engine.keys import beginning
from fdbqueue.engine.waiting import until_changed
from fdbqueue.lowlevel import (
    CODEC_ERRORS,
    Database,
    Future,
    KeyValue,
    Layout,
    Named,
    Transaction,
    V,
    attempts,
    check_limit,
    rows,
    run,
    run_async,
    started,
    value_of,
    verb,
    within,
)
from fdbqueue.stored.counters import read_unannounced
from fdbqueue.stored.settings import check_renamed

from ..common.waiting import long_wait
from ..leases import Leases, StoredItem
from ..leases.browsing import opened
from ..leases.lease import check_timeout
from .head import trim_arrivals
from .records import NO_LOOK, BrowserPointer, pack_record, pointer_key, read_pointer, record_in, registration_key
from .selectors import ItemTest, Selects

Start: TypeAlias = Literal["head", "tail"]

ROWS_AT_ONCE = 1_000
"""About how many items one transaction tells."""
ARRIVALS_AT_ONCE = 100
REMEMBERED_ITEMS = 10_000
LAST_ITEMS = 200
"""How many of the last items a browser looks at, if an enqueue recorded no arrival."""
STORE_SECONDS = 1.0
"""Shortest time between two transactions that store the place."""
QUIET_SECONDS = 15.0
"""Longest wait before it looks again, and stores that it is alive."""
_WATCHED = ("enqueued", "returned")
_PASSING = "passing browser "
KEEP_SECONDS = {"named": 86_400.0, "passing": 600.0}
"""How long arrivals are kept for a silent browser, unless its caller says otherwise."""


def check_start(start: object) -> None:
    """Raise ValueError if a browser can't begin there."""
    if start not in get_args(Start):
        raise ValueError(f"start is 'head' or 'tail', not {start!r}.")


def new_name() -> str:
    """Return the name of a browser without one."""
    return f"{_PASSING}{os.urandom(8).hex()}"


class FirstPointer:
    """The place at which a browser begins; called in the transaction that registers it.

    Args:
        layout: the queue's layout.
        now_us: the time.
        keep_us: how long arrivals are kept for a browser that does not heard.
        start: where a browser begins that has no place.
    """

    def __init__(self, layout: Layout, *, now_us: int, keep_us: int, start: Start) -> None:
        self._layout = layout
        self._now_us = now_us
        self._keep_us = keep_us
        self._start = start
        self.place = BrowserPointer([], 0, NO_LOOK, now_us)
        self.there: set[bytes] = set()
        """The packed positions of the last items that are there, if the browser is new."""

    async def __call__(self, tr: Transaction, name: str, *, is_new: bool) -> None:
        """Read the place, or write the first one. Remove browsers without a name that ended long ago."""
        layout = self._layout
        await self._remove_dead(tr)
        stored = await value_of(tr.get(pointer_key(layout, name)))
        if stored.present() and not is_new:
            self.place, self.there = read_pointer(layout, name, bytes(stored)), set()
            return
        counts = started(read_unannounced(tr, layout))
        last = started(rows(tr.snapshot, layout.begin, layout.end, limit=LAST_ITEMS, reverse=True))
        version = await value_of(tr.get_read_version())
        place = BrowserPointer([], version, await counts, self._now_us, keep_us=self._keep_us)
        found = await last
        self.there = {layout.available.packed(row.key) for row in found}
        if self._start == "head" and found:
            place = replace(place, scan=b"", scan_end=layout.available.packed(found[0].key))
        self.place = place
        tr.set(pointer_key(layout, name), pack_record(place))

    async def _remove_dead(self, tr: Transaction) -> None:
        layout = self._layout
        passing_names = beginning(_PASSING, layout.pointers.key())
        found = await rows(tr.snapshot, *passing_names, limit=ROWS_AT_ONCE)
        for (name,), row in layout.own_rows("pointers", found):
            place = read_pointer(layout, name, row.value)
            key = registration_key(layout, name)
            registered = await record_in(layout, name, tr.snapshot.get(key))
            if (
                registered is not None
                and registered.browser == "passing"
                and self._now_us - place.at_us > place.keep_us
            ):
                tr.add_read_conflict_key(row.key)  # it may be alive after all
                tr.clear(row.key)
                tr.clear(key)


_Told: TypeAlias = tuple[StoredItem[V] | Exception, BrowserPointer]
"""An item, or the error of one that can't be read; and the place behind it."""


@dataclass(slots=True)
class _Heard(Generic[V]):
    """What one transaction found."""

    place: BrowserPointer
    """The place behind what it tells."""
    told: list[_Told[V]] = field(default_factory=list)
    remembered: list[tuple[bytes, int, int]] = field(default_factory=list)
    """Packed position, version and hash of each item that it tells."""
    more: bool = False
    """Whether there may be more at once."""
    stored: bool = False
    """Whether it stored the place."""
    alarms: list[Future[object]] = field(default_factory=list)


class Follower(Named, Generic[V]):
    """A browser that stays; `Subscriptions.follow` makes it. One thread or task uses it.

    It is a context manager, an iterator and an asynchronous iterator. Its end of ``with`` is `close`.
    """

    def __init__(
        self,
        leases: Leases[V],
        name: str,
        db: Database,
        *,
        selector: str | Selects | None,
        first: FirstPointer,
        keep_us: int,
    ) -> None:
        self.leases = leases
        self.name = name
        self._db = db
        self._layout = leases.layout
        self._keep_us = keep_us
        self._accepts: Callable[[bytes, bytes], bool] | None = None
        if selector is not None:
            self._accepts = ItemTest(self._layout, selector)
        self._place = self._given = self._asked = first.place
        """The places behind the items in `_buffer`, and behind those that the caller has got."""
        self._there = first.there
        self._buffer: deque[_Told[V]] = deque()
        self._memory: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """For the last items told: the version at which they were read, and a hash of their stored value."""
        self._stored_at = time.monotonic()
        self._closed = False

    def __repr__(self) -> str:
        return f"Follower({self._layout.describe()}, {self.name!r})"

    @verb
    async def next_many(self, *, limit: int = 100, timeout: float | None = None) -> list[StoredItem[V]]:
        """Return the next items, at least one; [] if none arrives in time.

        Args:
            limit: how many at most.
            timeout: seconds to wait for an arrival; 0: do not wait; None: no limit.

        Raises:
            SubscriptionError: the browser was closed or unsubscribed, or was silent for longer than `keep`.
            QueueRenamed: the queue has another name now. A browser with a name goes on there.
            FormatError, CodecError: the next item can't be read. The next call goes on behind it.

        *Conflicts:* none. *Cost:* five reads in parallel, and one for each arrival. It waits by watches.
        """
        check_limit(limit, "items to return")
        check_timeout(timeout)
        if timeout != 0 and not self._buffer:
            await long_wait("Follower.next_many")
        deadline = None if timeout is None else time.monotonic() + timeout
        self._asked = self._given if self._buffer else self._place
        while not self._buffer:
            if self._closed:
                raise SubscriptionError(f"{self!r} was closed. Follow the queue again.")
            heard: _Heard[V] = await attempts(self._db, self._look)
            self._note(heard)
            if not heard.told:
                # Other readers may remove the arrivals up to here: it must not go back behind them.
                self._asked = self._place
            if self._buffer or heard.more:
                continue
            left = QUIET_SECONDS if deadline is None else min(QUIET_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return []
            await until_changed(heard.alarms, left)
        found: list[StoredItem[V]] = []
        while self._buffer and len(found) < limit:
            one, behind = self._buffer[0]
            if isinstance(one, Exception) and found:
                break
            self._buffer.popleft()
            self._given = behind
            if isinstance(one, Exception):
                raise one
            found.append(one)
        return found

    @verb
    async def close(self, *, handled: bool = True) -> None:
        """Store the place of a browser that has a name; remove one that has none. A second call does nothing.

        Args:
            handled: False: the items of the last `next_many` were not handled. A browser with this name tells them
                again. A ``with`` that ends by an error closes like that.
        """
        check_flag(handled, "handled")
        if self._closed:
            return
        self._closed = True
        if not handled:
            self._given = self._place = self._asked
        await attempts(self._db, self._end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredItem[V]:
        return run(self.next_many.steps(limit=1))[0]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredItem[V]:
        return (await run_async(self.next_many.steps(limit=1)))[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(handled=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close.aio(handled=kind is None)

    @property
    def key(self) -> bytes:
        return pointer_key(self._layout, self.name)

    def _note(self, heard: _Heard[V]) -> None:
        """Keep what a transaction found, once it is committed."""
        if heard.stored:
            self._stored_at = time.monotonic()
        self._given, self._place = self._place, heard.place
        for packed, version, hashed in heard.remembered:
            self._memory.pop(packed, None)
            self._memory[packed] = (version, hashed)
        while len(self._memory) > REMEMBERED_ITEMS:
            self._memory.popitem(last=False)
        self._buffer.extend(heard.told)

    async def _look(self, tr: Transaction) -> _Heard[V]:
        """Read the next items behind the place; set watches if there are none."""
        layout, view, place = self._layout, tr.snapshot, self._place
        registered = view.get(registration_key(layout, self.name))
        trimmed, unannounced = view.get(layout.trimmed_key), started(read_unannounced(tr, layout))
        reading = tr.get_read_version()
        notes = started(rows(view, *self._unread(place), limit=ARRIVALS_AT_ONCE))
        if not (await value_of(registered)).present():
            await check_renamed(tr.snapshot, layout)
            raise self._unsubscribed()
        gone = await value_of(trimmed)
        if gone.present() and int.from_bytes(bytes(gone), "big") > place.seen:
            raise SubscriptionError(
                f"{self!r} was silent for longer than {self._keep_us / 1e6:g} s, and arrivals that it has not told are"
                " gone. Unsubscribe it, and follow the queue again."
            )
        version, others = await value_of(reading), await unannounced
        heard: _Heard[V] = _Heard(place)
        if place.scan is not None:
            await self._scan(tr, heard, version)
        elif others != place.unannounced:
            await self._look_at_the_last(tr, heard, version, others)
        else:
            await self._tell_arrivals(tr, heard, await notes, version)
        idle = not heard.told and not heard.more
        if time.monotonic() - self._stored_at >= (QUIET_SECONDS if idle else STORE_SECONDS):
            await self._store(tr, place, int.from_bytes(bytes(gone), "big") if gone.present() else 0)
            heard.stored = True
        if idle:
            keys = [layout.count_key(name) for name in _WATCHED]
            heard.alarms = [tr.watch(key) for key in (*keys, registration_key(layout, self.name))]
        return heard

    def _unread(self, place: BrowserPointer) -> tuple[bytes, bytes]:
        begin, end = self._layout.arrivals_since(place.seen)
        return max(begin, place.after + b"\x00"), end

    async def _scan(self, tr: Transaction, heard: _Heard[V], version: int) -> None:
        """Tell the next items of those that were there at first."""
        available, place = self._layout.available, heard.place
        begin = max(available.begin, available.key(place.scan or b""))
        found = await rows(tr.snapshot, begin, available.key(place.scan_end) + b"\x00", limit=ROWS_AT_ONCE)
        for row in found:
            behind = replace(place, scan=available.packed(row.key) + b"\x00")
            await self._tell(tr, heard, row, version, behind)
        done = len(found) < ROWS_AT_ONCE
        heard.place = replace(place, scan=None if done else available.packed(found[-1].key) + b"\x00")
        heard.more = True

    async def _look_at_the_last(self, tr: Transaction, heard: _Heard[V], version: int, unannounced: int) -> None:
        """Tell those of the last items that are not remembered: enqueues recorded no arrival."""
        amount = LAST_ITEMS + min(ROWS_AT_ONCE, abs(unannounced - heard.place.unannounced))
        layout = self._layout
        found = await rows(tr.snapshot, layout.begin, layout.end, limit=amount, reverse=True)
        for row in reversed(found):
            packed = layout.available.packed(row.key)
            if packed not in self._there and packed not in self._memory:
                await self._tell(tr, heard, row, version, heard.place)
        heard.place = replace(heard.place, unannounced=unannounced)
        heard.more = True

    async def _tell_arrivals(self, tr: Transaction, heard: _Heard[V], notes: Sequence[KeyValue], version: int) -> None:
        """Tell the items at the places of arrivals, in commit order."""
        available, place = self._layout.available, heard.place
        spans = [self._layout.arrival_of(row.key) for row in notes]
        single = {
            packed: started(rows(tr.snapshot, available.key(packed), available.key(packed) + b"\x00", limit=1))
            for packed in {first for first, last in spans if first == last}
        }
        left = ROWS_AT_ONCE
        for note, (first, last) in zip(notes, spans, strict=True):
            arrived = self._version_of(note.key)
            if first == last:
                # A later note may name an item again. It is told once, but for a note that was told before.
                told = first < place.within
                found = [] if told else await single.pop(first, started(_no_rows()))
                done = True
            else:
                begin = available.key(max(first, place.within))
                found = await rows(tr.snapshot, begin, available.key(last) + b"\x00", limit=left)
                done = len(found) < left
            random = _common_random(available.position(available.key(first)), available.position(available.key(last)))
            for row in found:
                if self._is_new(row, arrived, random):
                    behind = replace(place, within=available.packed(row.key) + b"\x00")
                    await self._tell(tr, heard, row, version, behind)
            left -= len(found)
            if not done:
                heard.place = replace(place, within=available.packed(found[-1].key) + b"\x00")
                heard.more = True
                return
            # Notes of one transaction share their version: the place is before it until all of them are told.
            place = heard.place = replace(place, seen=max(place.seen, arrived - 1), after=note.key, within=b"")
            if left <= 0:
                heard.more = True
                return
        if len(notes) == ARRIVALS_AT_ONCE:
            heard.more = True
        else:
            heard.place = replace(place, seen=max(place.seen, version), after=b"", within=b"")

    def _version_of(self, key: bytes) -> int:
        at = len(self._layout.arrivals.key()) + 1
        return int.from_bytes(key[at : at + 8], "big")

    def _is_new(self, row: KeyValue, arrived: int, random: bytes | None) -> bool:
        """Return whether an arrival at that version is of this item, and the item was not told since.

        Args:
            random: the random part of the items that arrived; None: they may be any items of the span.
        """
        position = self._layout.position_of(row.key)
        if random is not None and position.random != random:
            return False
        told = self._memory.get(self._layout.available.packed(row.key))
        if told is None:
            return True
        version, hashed = told
        return version < arrived and (random is not None or hashed != hash(row.value))

    async def _tell(
        self, tr: Transaction, heard: _Heard[V], row: KeyValue, version: int, behind: BrowserPointer
    ) -> None:
        if self._accepts is not None and not self._accepts(row.key, row.value):
            return
        heard.remembered.append((self._layout.available.packed(row.key), version, hash(row.value)))
        try:
            item = await opened(tr, self.leases.queue, self._layout.available, row, "available")
        except (FormatError, *CODEC_ERRORS) as error:
            heard.told.append((error, behind))
        else:
            heard.told.append((item, behind))

    async def _store(self, tr: Transaction, place: BrowserPointer, trimmed: int) -> None:
        now_us = self.leases.now_us()
        tr.set(self.key, pack_record(replace(place, at_us=now_us, keep_us=self._keep_us)))
        await trim_arrivals(tr, self._layout, now_us, place.seen, trimmed)

    async def _end(self, tr: Transaction) -> None:
        layout = self._layout
        key = registration_key(layout, self.name)
        found = await record_in(layout, self.name, tr.get(key))
        if found is None:
            return
        if found.browser == "named":
            place = self._given if self._buffer else self._place
            tr.set(self.key, pack_record(replace(place, at_us=self.leases.now_us(), keep_us=self._keep_us)))
            return
        others = await rows(tr, *within(layout.subscriptions.key()), limit=2)
        tr.clear(key)
        tr.clear(self.key)
        if len(others) == 1:
            arrivals = layout.arrivals.range()
            tr.clear_range(arrivals.start, arrivals.stop)
            tr.clear(layout.subscribed_key)

    def _unsubscribed(self) -> SubscriptionError:
        return SubscriptionError(f"{self!r} was unsubscribed. Follow the queue again.")


async def _no_rows() -> list[KeyValue]:
    return []


def _common_random(first: Position, last: Position) -> bytes | None:
    """Return the random part that all items of a span's transaction have; None if they differ."""
    same = first.random == last.random and first.rank == last.rank
    return first.random if same else None
