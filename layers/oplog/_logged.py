"""Databases and transactions that log their changes to a queue. `layers/oplog/_oplog.py` creates them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fdbqueue.base.times import clock_us
from fdbqueue.engine.keys import Versionstamp, behind, is_within, strinc
from fdbqueue.lowlevel import FDBError, Future, Layout, Subspace

from ._records import Change, digest, notes_beside, pack_record, set_change

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
        self.clear_range(prefix, strinc(_bytes(prefix)))

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
