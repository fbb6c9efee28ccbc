"""`OperationLog`: the verbs of an operation log."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, overload

from fdbqueue import Queue
from fdbqueue.base.deprecation import ALL, Everything, tell_of_none
from fdbqueue.base.times import clock_us
from fdbqueue.engine.keys import Versionstamp, behind, bytes_behind, is_within
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.lowlevel import (
    Database,
    FDBError,
    Future,
    Layout,
    Steps,
    Subspace,
    Transaction,
    attempts,
    is_database,
    pages,
    verb,
)
from fdbqueue.stored.layout import Name

from ._records import Change, Moved, Record, digest, joined, notes_beside, pack_record, set_change

__all__ = ["Change", "Moved", "OperationLog", "Record", "calling"]


# Databases and transactions that log their changes to a queue. `layers/oplog/_oplog.py` creates them.

RECORD_BYTES = 90_000
"""A larger record is split over several keys."""
_ATOMICS = ("add", "bit_and", "bit_or", "bit_xor", "append_if_fits", "max", "min", "byte_min", "byte_max")
_VALUES_ATOMICS = ("compare_and_clear",)


@dataclass(slots=True)
class LoggedCall:
    """The current call in this thread or task."""

    name: str
    arguments: bytes
    """The digest of the arguments."""
    version: int = 0
    """The read version of the first of its transactions that has one."""


current_call: ContextVar[LoggedCall | None] = ContextVar("fdbqueue operation log call", default=None)


@dataclass(frozen=True, slots=True)
class LogTerms:
    """Where to log, and under which name."""

    space: Subspace
    layout: Layout
    by: str
    clock: Callable[[], float]


class LoggedDatabase:
    """A database whose transactions log their changes to a queue."""

    def __init__(self, db: Any, terms: LogTerms) -> None:
        self._db = db
        self._terms = terms

    def create_transaction(self) -> LoggedTransaction:
        """Return a new transaction that writes its record when it commits."""
        return LoggedTransaction(self._db.create_transaction(), self._terms)

    def __repr__(self) -> str:
        return f"LoggedDatabase({self._db!r}, by={self._terms.by!r})"


class LoggedTransaction:
    """A transaction that logs its changes to a queue. All other methods are the wrapped transaction's.

    It collects each write at once. A `commit` with changes also writes the record, under a versionstamped key. This
    is a blind write, which conflicts with nothing.
    """

    def __init__(self, tr: Any, terms: LogTerms) -> None:
        self._tr = tr
        self._terms = terms
        self._begin = terms.layout.prefix
        self._end = behind(terms.layout.prefix)
        self._forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    @property
    def snapshot(self) -> Any:
        self._reads()
        return self._tr.snapshot

    def get(self, key: Any) -> Any:
        self._reads()
        return self._tr.get(key)

    def get_key(self, key_selector: Any) -> Any:
        self._reads()
        return self._tr.get_key(key_selector)

    def get_range(self, *args: Any, **kwargs: Any) -> Any:
        self._reads()
        return self._tr.get_range(*args, **kwargs)

    def get_range_startswith(self, *args: Any, **kwargs: Any) -> Any:
        self._reads()
        return self._tr.get_range_startswith(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        self._reads()
        return self._tr[key]

    def set(self, key: Any, value: Any) -> None:
        self._tr.set(key, value)
        whole = _bytes(key)
        if is_within(whole, self._begin):
            self._changes.append(set_change(self._terms.layout, whole[len(self._begin) :], _bytes(value)))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def clear(self, key: Any) -> None:
        self._tr.clear(key)
        whole = _bytes(key)
        if is_within(whole, self._begin):
            self._changes.append(Change("clear", whole[len(self._begin) :]))

    def clear_range(self, begin: Any, end: Any) -> None:
        self._tr.clear_range(begin, end)
        first, last = max(_bytes(begin), self._begin), min(_bytes(end), self._end)
        if first < last:
            to = b"" if last == self._end else last[len(self._begin) :]
            self._changes.append(Change("clear_range", first[len(self._begin) :], to))

    def clear_range_startswith(self, prefix: Any) -> None:
        self.clear_range(*bytes_behind(_bytes(prefix)))

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        self._tr.set_versionstamped_key(key, param)
        template = _bytes(key)
        if is_within(template, self._begin):
            # The last four bytes are the offset of the versionstamp in the key.
            at = int.from_bytes(template[-4:], "little") - len(self._begin)
            own = template[len(self._begin) : -4]
            value = _bytes(param)
            notes = notes_beside(own, value)
            self._changes.append(Change("set_versionstamped_key", own, digest(value), notes, stamp_at=at))

    def commit(self) -> Future[None]:
        """Write the record and commit."""
        if self._changes:
            self._write_record()
        commit: Future[None] = self._tr.commit()
        return commit

    def on_error(self, error: Any) -> Any:
        """Prepare the next attempt, which collects its writes again."""
        self._forget()
        return self._tr.on_error(error)

    def reset(self) -> None:
        """Discard the collected changes and reset the transaction."""
        self._forget()
        self._tr.reset()

    def _forget(self) -> None:
        self._changes: list[Change] = []
        self._version: Any = None
        self._began_at_us = clock_us(self._terms.clock())

    def _reads(self) -> None:
        """Get the read version before the first read, which would fix it anyway."""
        if self._version is None:
            self._version = self._tr.get_read_version()

    def _write_record(self) -> None:
        terms = self._terms
        call = current_call.get() or LoggedCall("", b"")
        version = self._read_version()
        call.version = call.version or version
        stored = pack_record(
            terms.by,
            call.name,
            call.arguments,
            (self._began_at_us, clock_us(terms.clock())),
            (version, call.version if call.name else 0),
            self._changes,
        )
        for number, start in enumerate(range(0, len(stored), RECORD_BYTES)):
            key = terms.space.pack_with_versionstamp((Versionstamp(user_version=number),))
            self._tr.set_versionstamped_key(key, stored[start : start + RECORD_BYTES])

    def _read_version(self) -> int:
        """Return the read version without waiting, or 0 if it is unknown. After a read it is known."""
        if self._version is None or not self._version.is_ready():
            return 0
        with contextlib.suppress(FDBError):
            return int(self._version.wait())
        return 0


def _bytes(key: Any) -> bytes:
    own = getattr(key, "as_foundationdb_key", None) or getattr(key, "as_foundationdb_value", None)
    return bytes(own() if own is not None else key)


def _noted(name: str) -> Callable[[LoggedTransaction, Any, Any], None]:
    def apply(self: LoggedTransaction, key: Any, param: Any) -> None:
        getattr(self._tr, name)(key, param)
        whole = _bytes(key)
        if is_within(whole, self._begin):
            self._changes.append(Change(name, whole[len(self._begin) :], _bytes(param)))

    apply.__name__ = name
    return apply


for _name in (*_ATOMICS, *_VALUES_ATOMICS, "set_versionstamped_value"):
    setattr(LoggedTransaction, _name, _noted(_name))


Clock: TypeAlias = Callable[[], float]


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
    def forget(self, tr: Transaction | Database, *, until: bytes | Everything = ALL) -> Steps[None]:
        """Remove the records up to and including a stamp; without one, all records.

        *Conflicts:* none. *Cost:* one write.
        """
        tell_of_none(until, "OperationLog.forget(until=…)")
        begin, end = self._span(None)
        if not isinstance(until, Everything | None):
            end, _ = self._span(until)

        async def body(tr: Transaction) -> None:
            asks_marker(tr)
            tr.clear_range(begin, end)

        return attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr))

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
