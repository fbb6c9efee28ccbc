"""`OperationLog`: the verbs of an operation log."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast, overload

from fdbqueue import Queue
from fdbqueue.engine.keys import is_within
from fdbqueue.engine.marker import asks_marker
from fdbqueue.lowlevel import Database, Layout, Transaction, attempts, is_database, pages, verb
from fdbqueue.stored.layout import Name

from ._logged import LoggedCall, LoggedDatabase, LoggedTransaction, LogTerms, current_call
from ._records import Change, Moved, Record, digest, joined

Clock: TypeAlias = Callable[[], float]

__all__ = ["Change", "Moved", "OperationLog", "Record", "calling"]


class OperationLog:
    """The log of all changes to one queue.

    Args:
        name: the log's name, as for a queue. Its subspace must be outside the queue's.
        queue: the queue to log.

    Raises:
        ValueError: the log's subspace and the queue's overlap.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers.oplog import OperationLog, calling
    >>> db = fdbqueue.open("memory:")
    >>> orders = Queue("orders")
    >>> log = OperationLog("orders log", orders)
    >>> logged = log.of(db, by="shop 3")
    >>> with calling("enqueue", b"an order"):
    ...     position = orders.enqueue(logged, b"an order")
    >>> [record] = log.records(db)
    >>> record.by, record.call, [(moved.state, moved.position == position) for moved in record.moves(orders.layout)]
    ('shop 3', 'enqueue', [('available', True)])
    >>> db.close()
    """

    def __init__(self, name: Name, queue: Queue) -> None:
        if not isinstance(queue, Queue):
            raise TypeError(f"A log is of a Queue, as in OperationLog('log', leases.queue), not of {queue!r}.")
        self._space = Layout(name).space
        self._layout = queue.layout
        own, queues = self._space.key(), queue.layout.prefix
        if is_within(own, queues) or is_within(queues, own):
            raise ValueError(f"A log must be outside its queue: {Layout(name).describe()} and {queue!r} overlap.")

    def __repr__(self) -> str:
        return f"OperationLog({Layout(self._space).describe()}, of {self._layout.describe()})"

    @overload
    def of(self, tr: Database, *, by: str | None = None, clock: Clock = time.time) -> Database: ...
    @overload
    def of(self, tr: Transaction, *, by: str | None = None, clock: Clock = time.time) -> Transaction: ...
    def of(self, tr: Any, *, by: str | None = None, clock: Clock = time.time) -> Any:
        """Return a database or a transaction that works like the given one, and logs its changes.

        To log a transaction's changes, commit the returned transaction, not the given one.

        Args:
            tr: a database, or a transaction without writes so far.
            by: the name for the records; host name and process id by default.
            clock: returns seconds since 1970, like `time.time`.

        *Conflicts:* none. *Cost:* one more write per transaction that changes the queue.
        """
        if not callable(clock):
            raise TypeError(f"clock is a function that returns seconds since 1970, as time.time, not {clock!r}.")
        if not isinstance(by, str | None):
            raise TypeError(f"by is a text, or None, not {by!r}.")
        if by == "":
            raise ValueError("by is empty. Give the name for the records; without one it is host name and process id.")
        terms = LogTerms(self._space, self._layout, by or f"{socket.gethostname()}:{os.getpid()}", clock)
        return LoggedDatabase(tr, terms) if is_database(tr) else LoggedTransaction(tr, terms)

    def records(self, tr: Transaction | Database, *, after: bytes | None = None) -> Iterator[Record]:
        """Yield the records in commit order, lazily, like `Queue.browse`.

        Args:
            tr: a transaction, or a database. A database reads each page of rows in a transaction of its own.
            after: a stamp; yields only the records behind it.

        Raises:
            FormatError: a record can't be read.

        *Conflicts:* none, because it reads by snapshot. *Cost:* one read per page of up to 1,000 rows.
        """
        begin, end = self._span(after)
        yield from joined(self._space, (row for page in pages(tr, begin, end) for row in page))

    @verb
    async def forget(self, tr: Transaction | Database, *, until: bytes | None = None) -> None:
        """Remove the records up to and including a stamp, or all records if it is None.

        *Conflicts:* none. *Cost:* one write.
        """
        begin, end = self._span(None)
        if until is not None:
            end, _ = self._span(until)

        async def body(tr: Transaction) -> None:
            asks_marker(tr)
            tr.clear_range(begin, end)

        if is_database(tr):
            await attempts(cast(Database, tr), body)
        else:
            await body(cast(Transaction, tr))

    def _span(self, after: bytes | None) -> tuple[bytes, bytes]:
        if not isinstance(after, bytes | None):
            raise TypeError(f"A stamp is bytes, as `Record.stamp`, not {after!r}.")
        whole = self._space.range()
        # Up to 65,536 rows have the same stamp and differ in the user version behind it.
        begin = whole.start if after is None else self._space.key() + b"\x33" + after + b"\xff\xff\xff"
        return begin, whole.stop


@contextlib.contextmanager
def calling(name: str, *arguments: Any) -> Iterator[None]:
    """Set the call's name for the records that this thread or task commits in the ``with`` block.

    Args:
        name: the name of the call.
        arguments: the call's arguments. The record has the digest of their `repr`.
    """
    token = current_call.set(LoggedCall(name, digest(repr(arguments).encode()) if arguments else b""))
    try:
        yield
    finally:
        current_call.reset(token)
