"""Exactly once when a commit's outcome is unknown.

A commit can fail with 1021: it may or may not have taken effect. A blind retry would enqueue twice, or dequeue a second
item and lose the first. So a self-committing transaction also writes a commit marker. The marker is unique to the
attempt, and only one caller uses its key at a time. After an unknown outcome the caller reads the marker and learns it.
(docs/adr/0007)

The marker's key is ``(queue, "once", client, slot)``. The slot's next call overwrites it, so a client leaves only as
many markers as it had concurrent calls. New clients remove the markers of clients that have been gone for a day.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    FDBError,
    adopt_binding,
    leaves_in_doubt,
    predicates,
)
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.engine.transactional import again, connected
from fdbqueue.engine.turns import no_turn
from fdbqueue.errors import QueueFull, StorageError
from fdbqueue.moves.quotas import wait_for_room
from fdbqueue.stored.layout import Layout

T = TypeVar("T")

STALE_AFTER_S = 86_400.0
"""Age, by the clock of the looking machine, at which a marker is useless: no commit is in doubt for so long."""
TRUSTED_FOR_S = STALE_AFTER_S / 2
"""Age, by this machine's clock, up to which a missing marker was never written. A process that was stopped for longer
does not know whether another process removed the marker. The rest of a day allows for wrong clocks of other
machines."""
_SWEEP_LIMIT = 16
_MARKER = struct.Struct(">QQ")  # attempt, wall clock in microseconds


class Once:
    """Runs transactions of one queue so that each takes effect exactly once, or fails without effect."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._client: _Client | None = None
        self._adopted: Callable[[], Any] = _nothing
        """A weak reference to the database of the last call, whose errors are `FDBError`."""

    def transact(
        self,
        db: Database,
        body: Callable[[Transaction], Steps[T]],
        *,
        on_retry: Callable[[FDBError], None] = lambda error: None,
        takes: bool = False,
    ) -> Steps[T]:
        """Run `body` in a transaction of its own, and commit it exactly once.

        Args:
            db: the database.
            body: its steps. They run again at every retry.
            on_retry: called with the error before each retry, once it is certain that the attempt had no effect. An
                exception from it ends the call.
            takes: whether the body takes the first items of a queue, and so waits for this process's turn.

        Raises:
            FDBError: an error that `Transaction.on_error` does not retry. The outcome is unknown (`leaves_in_doubt`)
                with 1021 and 1031. 1021 means that no more retries are allowed or that the marker can't be read; its
                cause says why. 1031 comes from a timeout that the caller set on `db`.

        *Conflicts:* only the body's. *Cost:* one more key written; one more read after a 1021.
        """
        if self._adopted() is not db:
            yield from connected(db)
            adopt_binding()
            self._adopted = weakref.ref(db)
        client: Any = self._client
        if client is None or client.pid != os.getpid():
            yield from self.sweep(db)
            client = self._client
        if takes and (coming := getattr(db, "next_turn", no_turn)()) is not None:
            yield coming
        claim = SlotClaim(client)
        try:
            while True:
                try:
                    return (yield from claim.transact(db.create_transaction(), body, on_retry=on_retry))
                except QueueFull as error:
                    yield from wait_for_room(db, error)
        finally:
            claim.close()

    def claim(self) -> SlotClaim:
        """Claim a marker's key for one call at a time. The caller closes the claim."""
        client = self._client
        if client is None or client.pid != os.getpid():
            client = self._client = _Client(self._layout)
        return SlotClaim(client)

    def sweep(self, db: Database) -> Steps[None]:
        """Remove some markers of clients that are long gone, once in this client's life.

        It begins at the client's own random place among the markers. It reads them by snapshot, so that it does not
        conflict with calls whose markers it keeps. It does conflict with calls whose markers it removes: the client of
        an old marker may be back, and in doubt right now. Then the sweep fails, and the calls do not.
        """
        client = self._client
        if client is not None and client.pid == os.getpid():
            return
        client = self._client = _Client(self._layout)
        yield from connected(db)
        tr = db.create_transaction()
        try:
            found = yield from rows(tr.snapshot, client.begin, self._layout.markers.range().stop, limit=_SWEEP_LIMIT)
            old = [row.key for row in found if len(row.value) == _MARKER.size and _age_s(row.value) > STALE_AFTER_S]
            for key in old:
                tr.add_read_conflict_key(key)
                tr.clear(key)
            if old:
                yield tr.commit()
        except FDBError as error:
            # Another client will sweep. This client's call must not fail because of the sweep.
            if not predicates.retryable(error):
                raise


class SlotClaim:
    """One slot of this process's commit markers, used by one call at a time."""

    __slots__ = ("_client", "in_doubt", "key")

    def __init__(self, client: _Client) -> None:
        self._client = client
        try:
            self.key = client.free.pop()
        except IndexError:
            self.key = client.new_slot()
        self.in_doubt = False
        """Whether it is unknown if the commit took effect. It stays so after `transact` failed."""

    def close(self) -> None:
        """Free the slot for the next call, unless a commit under way may still write its marker there."""
        if not self.in_doubt:
            self._client.free.append(self.key)

    def write_marker(self, tr: Transaction) -> bytes:
        """Write a marker that no other attempt of this client has, and return it."""
        marker = _MARKER.pack(next(self._client.attempts), time.time_ns() // 1000)
        tr.set(self.key, marker)
        return marker

    def transact(
        self,
        tr: Transaction,
        body: Callable[[Transaction], Steps[T]],
        *,
        failed: FDBError | None = None,
        doubt: tuple[bytes, T] | None = None,
        on_retry: Callable[[FDBError], None] = lambda error: None,
    ) -> Steps[T]:
        """Run `body` in `tr` and commit it, until that has happened exactly once.

        Args:
            failed: the error of a first attempt that the caller made in `tr` itself.
            doubt: that attempt's marker and result, if its outcome is unknown.
            on_retry: called with the error before each retry, once it is certain that the attempt had no effect. An
                exception from it ends the call.
        """
        last: FDBError | None = None
        while True:
            committing: tuple[bytes, T] | None = None
            self.in_doubt = doubt is not None
            try:
                if failed is not None:
                    if doubt is None:
                        on_retry(failed)
                    yield from again(tr, failed)
                    if failed.code == NOT_COMMITTED and (coming := getattr(tr, "next_turn", no_turn)()) is not None:
                        yield coming
                    last, failed = failed, None
                if doubt is not None:
                    # The client library answers 1021 only when the commit can no longer be under way, so this read is
                    # final. After 1031 the commit may be under way, but 1031 is not retried.
                    value = yield tr.get(self.key)
                    if value.present() and bytes(value) == doubt[0]:
                        self.in_doubt = False
                        return doubt[1]
                    if _age_s(doubt[0]) > TRUSTED_FOR_S:
                        break
                    self.in_doubt = False
                    doubt = None
                    if last is not None:
                        on_retry(last)
                result = yield from body(tr)
                committing = (self.write_marker(tr), result)
                self.in_doubt = True  # also if the caller is cancelled during this wait
                yield tr.commit()
                self.in_doubt = False
                return result
            except FDBError as error:
                if failed is not None:
                    if doubt is not None and not leaves_in_doubt(error):
                        raise FDBError(COMMIT_UNKNOWN_RESULT) from error
                    raise
                if committing is not None and leaves_in_doubt(error):
                    doubt = committing
                failed = error
            except Exception as error:
                # A disk that refuses the read, or closed files, say nothing about the commit in doubt.
                if doubt is not None:
                    raise FDBError(COMMIT_UNKNOWN_RESULT) from error
                if isinstance(error, StorageError):
                    self.in_doubt = False  # the engine kept nothing of the commit that it refused
                raise
        raise FDBError(COMMIT_UNKNOWN_RESULT)


class _Client:
    """One process's commit markers on one queue. After a fork the child makes its own."""

    def __init__(self, layout: Layout) -> None:
        self.pid = os.getpid()
        self._space = layout.markers[os.urandom(8)]
        self.begin: bytes = self._space.key()
        self.free: deque[bytes] = deque()
        """The keys of the slots that no call uses now."""
        self.attempts = itertools.count(1)
        self._slots = itertools.count(1)

    def new_slot(self) -> bytes:
        """Return the key of another slot."""
        key: bytes = self._space.pack((next(self._slots),))
        return key


def _nothing() -> None:
    """Refer to no database."""


def _age_s(marker: bytes) -> float:
    """Return the age of a marker by this machine's clock."""
    made_at_us: int = _MARKER.unpack(marker)[1]
    return time.time_ns() / 1e9 - made_at_us / 1e6
