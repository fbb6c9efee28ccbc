"""A consumer: leases items, calls a handler for each, and settles what came of it.

Challenge
    Between "lease, work, ack" and a program that can be left alone stand concurrency, leases that must not run out
    while the work goes on, failures, and a stop that loses no work.

Keys
    None of its own.

Ordering
    Items are begun in queue order. With a concurrency above 1 they end in any order.

Guarantees
    An item is acked only after its handler has returned. What a handler raises gives its item back, or lets it die, as
    the leases' policy says. Leases are extended in the background until their handlers are done, so that a duration
    of seconds is enough for work of hours. After `stop`, or SIGTERM, nothing is begun any more; items that were leased
    and not begun go back to their places at once, running handlers get some seconds to end. An exclusive subscription
    stays its own while it runs.

Limits
    At least once: an item whose handler has done its work is delivered again if the process dies before the ack. A
    handler that writes to the same database can ack in its own transaction, return `ACKED`, and be exactly once.
    A handler in a thread can't be interrupted: when it does not end in time, its lease is given back all the same,
    which fences its ack but not its other effects.

Source
    The SCS Agent Queue protocol 0.01: agents that receive, lock and confirm.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from fdbqueue.engine.api import Database
from fdbqueue.engine.transactional import only_database

from .composing import QueueWithLeases, given_leases
from .consuming import ConsumerReport, Run, Terms
from .handlers import Handler
from .leases import Leases
from .leasing.times import positive
from .subscription import Subscription


class Consumer:
    """Runs a handler for the items of a queue.

    Args:
        source: what to lease from: `Leases`, with their policy for failures, a layer that has leases, such as a
            `PriorityQueue`, or a `Subscription`, on its credit.
        handler: called with each lease; a coroutine function is awaited, another runs in a thread, and what it returns
            is awaited if it is to be. `Snooze` raised by it puts the item off, any other exception fails the attempt.
        concurrency: how many handlers run at once.
        duration: of a lease, in seconds; also how long an item waits when this process dies. Extended in time.
        prefetch: how many items are leased ahead of the running handlers; as many as `concurrency` by default.
        grace: how many seconds running handlers have to end after `stop`.
        name: who leases, for those who look on.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("numbers", codec="json"))
    >>> report = leases.enqueue_many(db, range(100))
    >>> total = []
    >>> Consumer(leases, lambda lease: total.append(lease.value)).drain(db).acked
    100
    >>> sum(total)
    4950
    """

    def __init__(
        self,
        source: Leases | QueueWithLeases | Subscription,
        handler: Handler,
        *,
        concurrency: int = 16,
        duration: float = 30.0,
        prefetch: int | None = None,
        grace: float = 30.0,
        name: str | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is how many handlers run at once, at least 1, not {concurrency}.")
        if prefetch is not None and prefetch < 0:
            raise ValueError(f"prefetch is how many items are leased ahead, 0 or more, not {prefetch}.")
        positive(duration, "duration")
        if not isinstance(source, Subscription):
            source = given_leases(source, "Consumer", "or a Subscription")
        if not callable(handler):
            raise TypeError(f"A handler is called with each lease, and {handler!r} can't be.")
        self.source = source
        self.handler = handler
        self.report = ConsumerReport()
        ahead = concurrency if prefetch is None else prefetch
        self._terms = Terms(concurrency, concurrency + ahead, duration, grace, name, until_empty=False)
        self._run: Run | None = None
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        return f"Consumer({self.source!r}, concurrency={self._terms.concurrency})"

    def run(self, db: Database) -> ConsumerReport:
        """Handle items, and wait for more, until `stop` is called or, in the main thread, SIGTERM or SIGINT comes.

        Raises:
            FDBError: the database can't be used; what was leased is given back if that is still possible.
            FormatError, CodecError: the first item can't be read; it stays where it is.
        """
        return asyncio.run(self.run_async(db))

    def drain(self, db: Database) -> ConsumerReport:
        """Handle items until none is available; otherwise as `run`. Items that are delayed then stay."""
        return asyncio.run(self.drain_async(db))

    async def run_async(self, db: Database) -> ConsumerReport:
        """Do what `run` does, in the running event loop."""
        return await self._to_the_end(db, self._terms)

    async def drain_async(self, db: Database) -> ConsumerReport:
        """Do what `drain` does, in the running event loop."""
        return await self._to_the_end(db, replace(self._terms, until_empty=True))

    def stop(self) -> None:
        """End gracefully: begin nothing more, give back what was not begun. From any thread, or a handler.

        A consumer that was stopped stays stopped.
        """
        self._stopped.set()
        current = self._run
        if current is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                current.loop.call_soon_threadsafe(current.stop)

    async def _to_the_end(self, db: Database, terms: Terms) -> ConsumerReport:
        only_database(
            db,
            "A Consumer",
            "In a transaction use Leases.lease(tr), do the work, and Leases.ack(tr, lease).",
        )
        if self._run is not None:
            raise RuntimeError(f"{self!r} is running already; make another one.")
        self._run = current = Run(db, self.source, self.handler, terms, self.report)
        started = time.monotonic()
        try:
            with _signals(self.stop):
                if self._stopped.is_set():
                    current.stop()
                await current.to_the_end()
        finally:
            self._run = None
            self.report.seconds += time.monotonic() - started
        return self.report


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop at SIGTERM and SIGINT while this lasts, where signals arrive: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
