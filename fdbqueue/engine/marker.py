"""Commit markers: a transaction that is repeated learns whether its earlier try took effect.

A commit can fail with 1021: it may or may not have taken effect. So the transaction also writes a marker, unique to the
attempt, under a key that only one call uses at a time. After an unknown outcome the next attempt reads the marker. If
it is there, the call returns the result of the earlier attempt. (docs/adr/0007)

A body of `transactional` writes a marker only if a call of a queue asks for one: `asks_marker`. (docs/adr/0171)

A client is one process. Its keys are ``(prefix, client, slot)``. The slot's next call overwrites the marker, so that a
client leaves only as many markers as it had concurrent calls. New clients remove the markers of clients that have been
gone for a day.
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
    StorageError,
    leaves_in_doubt,
    predicates,
)
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.keys import within
from fdbqueue.engine.steps import Steps, begun, rows, value_of
from fdbqueue.engine.transactional import again
from fdbqueue.engine.turns import no_turn

T = TypeVar("T")

TRANSACTIONS = b"\xfdfdbqueue/once/"
"""The begin of the keys of the markers of `transactional`, which belong to no queue. No tuple begins so."""
STALE_AFTER_S = 86_400.0
"""Age, by the clock of the looking machine, at which a marker is useless: no commit is in doubt for so long."""
TRUSTED_FOR_S = STALE_AFTER_S / 2
"""Age, by this machine's clock, up to which a missing marker was never written. A process that was stopped for longer
does not know whether another process removed the marker. The rest of a day allows for wrong clocks of other
machines."""
_SWEEP_LIMIT = 16
_MARKER = struct.Struct(">QQ")  # attempt, wall clock in microseconds


class SlotClaim:
    """One slot of this process's commit markers, used by one call at a time."""

    is_asked = True
    """Whether the present attempt writes a marker."""
    waits_for_turns = True
    """Whether an attempt after a conflict waits for this process's turn, on an engine that has turns."""

    __slots__ = ("_client", "in_doubt", "key")

    def __init__(self, client: Client) -> None:
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
        marker: bytes = _MARKER.pack(next(self._client.attempts), time.time_ns() // 1000)
        tr.set(self.key, marker)
        return marker

    async def _turn(self, tr: Transaction) -> None:
        if self.waits_for_turns and (coming := getattr(tr, "next_turn", no_turn)()) is not None:
            await value_of(coming)

    async def transact(
        self,
        tr: Transaction,
        body: Callable[[Transaction], Steps[T]],
        *,
        failed: FDBError | None = None,
        doubt: tuple[bytes, T] | None = None,
        on_retry: Callable[[FDBError], None] = lambda error: None,
    ) -> T:
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
                    await again(tr, failed)
                    if failed.code == NOT_COMMITTED:
                        await self._turn(tr)
                    last, failed = failed, None
                if doubt is not None:
                    # The client library answers 1021 only when the commit can no longer be under way, so this read is
                    # final. After 1031 the commit may be under way, but 1031 is not retried.
                    value = await value_of(tr.get(self.key))
                    if value.present() and bytes(value) == doubt[0]:
                        self.in_doubt = False
                        return doubt[1]
                    if _age_s(doubt[0]) > TRUSTED_FOR_S:
                        break
                    self.in_doubt = False
                    doubt = None
                    if last is not None:
                        on_retry(last)
                result = await begun(body, tr)
                if self.is_asked:
                    committing = (self.write_marker(tr), result)
                    self.in_doubt = True  # also if the caller is cancelled during this wait
                await value_of(tr.commit())
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


class _AskedClaim(SlotClaim):
    """The slot of a call of `transactional`. An attempt writes a marker only if a call in its body asks for one."""

    __slots__ = ("is_asked",)
    waits_for_turns = False  # its body may take no items

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.is_asked = False


def asks_marker(tr: Any) -> None:
    """Ask for a commit marker, if `tr` is the transaction of a `transactional` function.

    Each call that changes a queue asks, because it may not be repeated after a commit that took effect: an ack would
    find its lease gone, an enqueue would append twice.
    """
    claim = getattr(tr, "marker_claim", None)
    if claim is not None:
        claim.is_asked = True


async def transact_body(db: Any, tr: Any, body: Callable[[Transaction], Steps[T]]) -> T:
    """Run the body of a `transactional` function in `tr`, a transaction of `db`, and commit it.

    If a call in it has asked for a marker, the body takes effect exactly once, and the result is that of the attempt
    that did. Otherwise it is repeated after every retryable error.

    Raises:
        FDBError: as `Once.transact`.
    """
    client = _clients.get(db)
    if client is None or client.pid != os.getpid():
        client = _clients[db] = Client(TRANSACTIONS)
    claim = tr.marker_claim = _AskedClaim(client)

    async def attempt(tr: Transaction) -> T:
        claim.is_asked = False
        result = await begun(body, tr)
        if claim.is_asked and not client.has_swept:
            await client.sweep(db)
        return result

    try:
        return await claim.transact(tr, attempt)
    finally:
        claim.close()


class Client:
    """One process's commit markers under one prefix. After a fork the child makes its own."""

    def __init__(self, prefix: bytes) -> None:
        self.pid = os.getpid()
        self.begin: bytes = prefix + fdb_tuple.pack((os.urandom(8),))
        self._end = within(prefix)[1]
        self.has_swept = False
        self.free: deque[bytes] = deque()
        """The keys of the slots that no call uses now."""
        self.attempts = itertools.count(1)
        self._slots = itertools.count(1)

    def new_slot(self) -> bytes:
        """Return the key of another slot."""
        slot: bytes = fdb_tuple.pack((next(self._slots),))
        return self.begin + slot

    async def sweep(self, db: Database) -> None:
        """Remove some markers of clients that are long gone.

        It begins at the client's own random place among the markers. It reads them by snapshot, so that it does not
        conflict with calls whose markers it keeps. It does conflict with calls whose markers it removes: the client of
        an old marker may be back, and in doubt right now. Then the sweep fails, and the calls do not.
        """
        self.has_swept = True
        tr = db.create_transaction()
        try:
            found = await rows(tr.snapshot, self.begin, self._end, limit=_SWEEP_LIMIT)
            old = [row.key for row in found if len(row.value) == _MARKER.size and _age_s(row.value) > STALE_AFTER_S]
            for key in old:
                tr.add_read_conflict_key(key)
                tr.clear(key)
            if old:
                await value_of(tr.commit())
        except FDBError as error:
            # Another client will sweep. This client's call must not fail because of the sweep.
            if not predicates.retryable(error):
                raise


def _age_s(marker: bytes) -> float:
    """Return the age of a marker by this machine's clock."""
    made_at_us: int = _MARKER.unpack(marker)[1]
    return time.time_ns() / 1e9 - made_at_us / 1e6


_clients: weakref.WeakKeyDictionary[Any, Client] = weakref.WeakKeyDictionary()
"""The clients of `transactional`, by their databases."""
