"""Rows of a queue in pages, and their readers. Reads are in the caller's transaction, or in several of our own.

A browser that runs next to consumers competes with them for the server's time, and for processors on a shared machine.
Its share can be limited with a duty cycle: it then rests after each page until reading has taken no more of the time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from numbers import Real
from types import CoroutineType
from typing import Any, Generic, TypeAlias, TypeVar, cast

from fdbqueue.base.arguments import check_flag, check_limit
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.blocking import check_cancelled
from fdbqueue.engine.steps import Steps, rows, run, run_async
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.engine.waiting import pause
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import check_renamed

PAGE_ROWS = 1_000
PAGE_BYTES = 1_000_000
_FIRST_PAGE_ROWS = 100

T = TypeVar("T")


class BrowsePace:
    """Computes the rest between two pages, so that reading takes no more than a share of the time.

    Args:
        duty_cycle: the part of the time that reading may take, over 0 and up to 1; 1 means no rest.
        clock: returns the time in seconds.
        rest: waits for a number of seconds.

    Raises:
        ValueError: the duty cycle is not in that range. TypeError: it is no number.
    """

    __slots__ = ("_begun", "_clock", "_duty_cycle", "_read", "_rest")

    def __init__(
        self,
        duty_cycle: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Steps[None]] = pause,
    ) -> None:
        _check_part(duty_cycle)
        self._duty_cycle = duty_cycle
        self._clock = clock
        self._rest = rest
        self._begun: float | None = None
        self._read = 0.0

    async def paced(self, reading: Steps[T]) -> T:
        """Rest long enough for the reading before, and then read.

        The time that the caller spent meanwhile counts as rest. A slow caller does not wait in addition.
        """
        if self._begun is not None:
            seconds = self._begun + self._read / self._duty_cycle - self._clock()
            if seconds > 0:
                await self._rest(seconds)
        self._begun = self._clock()
        result = await reading
        self._read = self._clock() - self._begun
        return result


class Pages:
    """The rows of ``[begin, end)`` in pages, read by snapshot.

    A page has at most `PAGE_ROWS` rows, and about `PAGE_BYTES` as estimated from the page before. Given a database,
    each page is read in its own transaction, so that the whole may take longer than a transaction lives.

    Args:
        tr: a database, or a transaction. A transaction lives for a few seconds, so it is read without rests.
        begin: the first key.
        end: the key behind the last one.
        limit: how many rows at most; None: all.
        reverse: from the last row to the first.
        pace: the rests between pages.
        layout: the layout of the queue, if its caller named it: without rows, its old name is refused.

    Raises:
        ValueError: the limit is less than 0. TypeError: it is no integer, `reverse` is neither True nor False, or
            `tr` is neither a transaction nor a database.
    """

    def __init__(
        self,
        tr: Transaction | Database,
        begin: bytes,
        end: bytes,
        *,
        limit: int | None = None,
        reverse: bool = False,
        pace: BrowsePace | None = None,
        layout: Layout | None = None,
    ) -> None:
        check_limit(limit, "items to look at", least=0, optional=True)
        check_flag(reverse, "reverse")
        self._tr = tr
        self._begin = begin
        self._end = end
        self._left = limit
        self._reverse = reverse
        self._pace = pace if is_database(tr) else None
        self._layout = layout
        """The queue whose name is in doubt; None: it is not."""
        self._page_rows = _FIRST_PAGE_ROWS
        self._ended = False

    async def next(self) -> list[KeyValue] | None:
        """Read the next page; None if there is none.

        Raises:
            QueueRenamed: there are no rows, and the queue has another name now.
        """
        if self._ended or self._begin >= self._end or self._left == 0:
            return None
        wanted = self._page_rows if self._left is None else min(self._left, self._page_rows)
        reading = self._read(wanted)
        page = await (reading if self._pace is None else self._pace.paced(reading))
        self._ended = len(page) < wanted
        if not page:
            return None
        if self._left is not None:
            self._left -= len(page)
        if self._reverse:
            self._end = page[-1].key
        else:
            self._begin = page[-1].key + b"\x00"
        mean = sum(len(row.value) for row in page) // len(page) + 1
        self._page_rows = max(1, min(PAGE_ROWS, PAGE_BYTES // mean))
        return page

    def _read(self, limit: int) -> Steps[list[KeyValue]]:
        async def read(tr: Transaction) -> list[KeyValue]:
            found = await rows(tr.snapshot, self._begin, self._end, limit=limit, reverse=self._reverse)
            if self._layout is not None and not found:
                await check_renamed(tr.snapshot, self._layout)
            self._layout = None
            return found

        if is_database(self._tr):
            db: Database = self._tr  # type: ignore[assignment]
            return attempts(db, read)
        own: Transaction = self._tr  # type: ignore[assignment]
        return read(own)


def pages(tr: Transaction | Database, begin: bytes, end: bytes) -> Iterator[list[KeyValue]]:
    """Yield the rows of ``[begin, end)`` in pages, like `Pages`. It blocks the thread."""
    reading = Pages(tr, begin, end)
    while True:
        check_cancelled()
        page = run(reading.next())
        if page is None:
            return
        yield page


Look: TypeAlias = Callable[[KeyValue], T | Steps[T | None] | None]
"""Makes the shown object from a row, directly or in steps; None: the row is not shown."""


class Browser(Iterator[T], AsyncIterator[T], Generic[T]):
    """A lazy iterator over rows, in order: ``for item in …`` or ``async for item in …``.

    Args:
        pages: the source of the rows.
        look: makes the shown object from each row.
        limit: how many are shown at most; None: all.
    """

    __slots__ = ("_walk",)

    def __init__(self, pages: Pages, look: Look[T], *, limit: int | None = None) -> None:
        check_limit(limit, "items to show", least=0, optional=True)
        self._walk = _walk(pages, look, limit)

    def __repr__(self) -> str:
        return "<Browser: for item in it, or async for item in it>"

    def __next__(self) -> T:
        step = next(self._walk)
        while isinstance(step, _Wait):
            step = self._walk.send(run(step.steps))
        return step

    async def __anext__(self) -> T:
        try:
            step = next(self._walk)
            while isinstance(step, _Wait):
                step = self._walk.send(await run_async(step.steps))
        except StopIteration:
            raise StopAsyncIteration from None
        return step


class _Wait:
    """Steps to run; the caller sends their result back."""

    __slots__ = ("steps",)

    def __init__(self, steps: Steps[object]) -> None:
        self.steps = steps


def _walk(pages: Pages, look: Look[T], limit: int | None) -> Generator[T | _Wait, Any, None]:
    """Yield the objects to show and the steps to wait for. Blocking and asyncio iteration share this body."""
    shown = 0
    while limit is None or shown < limit:
        page = yield _Wait(pages.next())
        if page is None:
            return
        for row in page:
            found: Any = look(row)
            if type(found) is CoroutineType:
                found = yield _Wait(found)
            if found is None:
                continue
            yield found
            shown += 1
            if shown == limit:
                return


def _check_part(duty_cycle: object) -> None:
    if isinstance(duty_cycle, bool) or not isinstance(duty_cycle, Real):
        raise TypeError(f"duty_cycle is a part of the time, a number over 0 and up to 1, not {duty_cycle!r}.")
    if not 0 < cast(float, duty_cycle) <= 1:
        raise ValueError(f"duty_cycle is a part of the time, over 0 and up to 1, not {duty_cycle}.")
