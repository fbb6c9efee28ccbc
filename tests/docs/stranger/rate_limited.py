"""A layer that somebody else might write: a queue that gives out at most so many items in a period.

It uses the public names of `fdbqueue` and of `fdbqueue.lowlevel`, and nothing else. It has a key of its own, a timer of
its own, a batcher, a part in the check, and a section on the page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fdbqueue
from fdbqueue import Position, Queue
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    ItemCheck,
    Layout,
    Named,
    PagePart,
    Shown,
    Subspace,
    TextTable,
    Transaction,
    add_to_check,
    add_to_page,
    fdb_tuple,
    not_negative,
    only_database,
    positive,
    run,
    value_of,
    verb,
)


@dataclass(frozen=True, slots=True, repr=False)
class Window(Shown):
    """How many items the present period has given out."""

    ends_at_us: int
    taken: int


class RateLimited(Named):
    """Gives out at most `limit` items in each period of `seconds`.

    Args:
        queue: the queue.
        limit: how many items.
        seconds: how long a period is.
        clock: seconds since 1970.
    """

    def __init__(
        self, queue: Queue[Any], *, limit: int, seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.queue = queue
        self.layout = queue.layout
        self._limit = limit
        self._period_us = positive(seconds, "seconds")
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: list[tuple[Any, threading.Event]] = []
        self.commits = 0

    def __repr__(self) -> str:
        return f"RateLimited({self.queue!r}, limit={self._limit})"

    @verb
    async def take(self, tr: Transaction | Database) -> fdbqueue.Item[Any] | None:
        """Take the first item out; None if there is none, or if the period has given out enough.

        *Conflicts:* with every other take. *Cost:* as `Queue.dequeue`, and one read and write.
        """
        return await self.queue.transact(tr, self._take, takes=True)

    @verb
    async def opens_in(self, tr: Transaction | Database) -> float:
        """Return in how many seconds an item may be taken; 0: now."""
        window = await self.queue.read(tr, lambda tr: read_window(tr, self.layout))
        left_us = 0 if window is None or window.taken < self._limit else window.ends_at_us - int(self._clock() * 1e6)
        return max(0, left_us) / 1e6

    @verb
    async def enqueue(self, tr: Transaction | Database, value: Any, *, delay: float = 0.0) -> Position:
        """Append an item."""
        not_negative(delay, "delay")
        return await self.queue.enqueue.steps(tr, value)

    def enqueue_soon(self, db: Database, value: Any) -> None:
        """Append an item in one transaction with those of other threads: the first one writes for all."""
        only_database(db, "RateLimited.enqueue_soon", "Use enqueue.")
        done = threading.Event()
        with self._lock:
            self._pending.append((value, done))
            leads = len(self._pending) == 1
        if not leads:
            done.wait()
            return
        time.sleep(0)  # others may join
        with self._lock:
            batch, self._pending = self._pending, []
        run(self.queue.transact(db, lambda tr: self._append(tr, [value for value, _ in batch])))
        self.commits += 1
        for _, event in batch:
            event.set()

    async def _append(self, tr: Transaction, values: list[Any]) -> None:
        for value in values:
            await self.queue.enqueue.steps(tr, value)

    async def _take(self, tr: Transaction) -> fdbqueue.Item[Any] | None:
        now_us = int(self._clock() * 1e6)
        window = await read_window(tr, self.layout)
        if window is None or window.ends_at_us <= now_us:
            window = Window(now_us + self._period_us, 0)  # the timer is over: any call that takes begins a new period
        if window.taken >= self._limit:
            return None
        item: fdbqueue.Item[Any] | None = await self.queue.dequeue.steps(tr)
        if item is not None:
            tr.set(own(self.layout).pack(("window",)), fdb_tuple.pack((window.ends_at_us, window.taken + 1)))
        return item


def own(layout: Layout) -> Subspace:
    """Return the layer's own keys, in the queue's subspace, so that `clear` removes them."""
    return layout.space["rate"]


async def read_window(tr: Transaction, layout: Layout) -> Window | None:
    """Read the present period. The read conflicts with every other take."""
    stored = await value_of(tr.get(own(layout).pack(("window",))))
    return Window(*fdb_tuple.unpack(bytes(stored))) if stored.present() else None


class RateCheck(ItemCheck):
    """Finds a period that has given out a wrong number of items."""

    def __init__(self, tr: Transaction | Database, queue: Queue[Any]) -> None:
        self._window = run(queue.read(tr, lambda tr: read_window(tr, queue.layout)))

    def problems(self) -> list[str]:
        wrong = self._window is not None and self._window.taken < 1
        return ["A period has given out no item, and has a key all the same."] if wrong else []


@dataclass(frozen=True, slots=True)
class RateSection:
    """The layer's section on the page."""

    window: Window

    def facts(self) -> str:
        return f"{self.window.taken} items taken in this period"

    def tables(self) -> Iterator[TextTable]:
        yield TextTable("rate", ("taken",), ((self.window.taken,),))


async def section(tr: Transaction, layout: Layout) -> RateSection | None:
    """Read the section."""
    window = await read_window(tr, layout)
    return None if window is None else RateSection(window)


add_to_check("rate limits", CheckPart(RateCheck, ("periods",), owns=(own,)))
add_to_page("rate limits", PagePart(section))
