"""`Completion`: the end of one item, to wait for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import msgspec

from fdbqueue import CodecError, CompletionError, Position
from fdbqueue.base.reprs import pairs
from fdbqueue.base.typed import decoder
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.lowlevel import Database, Named, Shown, Steps, Transaction, only_database, pack, value_of, verb
from fdbqueue.moves.outcomes import read_record
from fdbqueue.stored.layout import TTL

from ..common.ending import NotEnded, until_ended
from ..common.waiting import long_wait
from ..leases import Leases
from ..leases.transitions import Transitions

R = TypeVar("R")

_TOLD = {
    "dead": "became a dead letter after its last attempt",
    "expired": "was removed: its time to live was over",
    "deleted": "was removed by a smart queue's decision, or since the item or group that it follows did not end well",
    "cancelled": "was removed: it or its group was cancelled",
    "ignored": "was not enqueued: a smart queue ignored it",
}


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown, Generic[R]):
    """How an item ended."""

    state: str
    """"done", "dead", "expired", "deleted", "cancelled" or "ignored"."""
    result: R | None
    """The result of its handler, if it is done."""
    error: str
    """The error of its last attempt, if it is not; "" if there was none."""
    ended_at: float
    """When it ended, in seconds by the clock of the process that ended it."""


class Completion(Named, Generic[R]):
    """The end of one item: wait for it, or await it. `Results.enqueue` and `Results.completion` return it.

    It can be pickled, and ``str(completion)`` is a text from which `Results.completion` makes it again in any process.

    Args:
        queue_leases: the leases of the item's queue.
        position: the item.
        type: the type of the result; Any for what MessagePack holds.
        db: the database to wait in; None: `at` says it later.
    """

    __slots__ = ("_db", "_leases", "_queue", "_type", "position")

    def __init__(
        self, queue_leases: Leases, position: Position, *, type: Any = Any, db: Database | None = None
    ) -> None:
        if not isinstance(queue_leases, Leases):
            raise TypeError(
                f"A completion needs the Leases of its queue, not {queue_leases!r}. Results make completions."
            )
        if not isinstance(position, Position):
            raise TypeError(f"A completion is that of an item, by its Position, not by {position!r}.")
        self._leases = queue_leases
        custody = queue_leases.retry.custody
        self._queue = queue_leases.queue if custody is None else custody.items
        self._type = type
        self._db = db
        self.position = position
        """The item; the address of an item in a session."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Completion, type=self._type), (self._leases, self.position)

    def __repr__(self) -> str:
        return f"Completion({self._queue.layout.describe()}, {self.position.text!r})"

    def _repr_html_(self) -> str:
        return pairs("Completion", {"queue": self._queue, "item": self.position.text, "text": str(self)})

    def __str__(self) -> str:
        return self.position.text

    def at(self, db: Database) -> Completion[R]:
        """Return this completion with the database to wait in; after it was unpickled, for instance."""
        only_database(db, "Completion.at", "To look in a transaction use Completion.outcome(tr).")
        return Completion(self._leases, self.position, type=self._type, db=db)

    @verb
    async def wait(self, timeout: float | None = None) -> R:
        """Wait until the item has ended, and return its result. ``await completion`` does the same.

        If the item was enqueued in your own transaction, commit that first.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            CompletionError: the item ended without a result, or there is no record of it.
            TimeoutError: the time is over. The item is not affected.
            CodecError: the result is not of the completion's type.
            ValueError: the completion has no database; `at` gives it one.

        *Conflicts:* none. *Cost:* one read and a watch, each time that the record changes: once, in general.
        """
        if self._db is None:
            raise ValueError(f"{self!r} has no database to wait in. Give it one: completion.at(db).wait().")
        if timeout != 0:
            await long_wait("Completion.wait")
        name = f"The item {self} of {self._queue!r}"
        expire = None if self._leases.retry.custody is None else self._expire
        return self._result_of(await until_ended(self._db, self._leases, self._look, timeout, name, expire))

    def __await__(self) -> Generator[Any, Any, R]:
        return self.wait.aio().__await__()

    @verb
    async def outcome(self, tr: Transaction | Database) -> Outcome[R] | None:
        """Return how the item ended; None if it has not ended yet.

        Raises:
            CompletionError: there is no record of it; its `outcome` is "gone".
            CodecError: the result is not of the completion's type.

        *Conflicts:* in a transaction, with the end of the item. *Cost:* one read.
        """
        found = await self._leases.queue.read(tr, lambda tr: self._read(tr))
        return None if isinstance(found, NotEnded) else found

    async def _expire(self, db: Database) -> None:
        """End the life of an item in a session."""
        custody = self._leases.retry.custody
        if custody is None:
            return

        async def body(tr: Transaction) -> None:
            now_us = self._leases.now_us()
            moves = Transitions(tr, self._leases.layout, now_us)
            await custody.release(tr, moves, self.position, TTL, now_us)
            moves.finish()

        await self._leases.queue.transact(db, body)

    def _look(self, tr: Transaction) -> Steps[Outcome[R] | NotEnded]:
        return self._read(tr.snapshot)

    async def _read(self, tr: ReadTransaction) -> Outcome[R] | NotEnded:
        layout = self._leases.layout
        key = layout.completions.key(pack(self.position))
        value = await value_of(tr.get(key))
        if not value.present():
            raise CompletionError(
                f"Nothing is known of the item {self} of {self._queue!r}: its enqueue was not committed, its"
                " outcome was kept for its time and then removed, or the queue was cleared.",
                outcome="gone",
            )
        record = read_record(layout, key, bytes(value))
        if record.how == "pending":
            return NotEnded(key, record.until_us)
        result = None
        if record.how == "done" and record.result:
            try:
                result = decoder(msgspec.msgpack, self._type).decode(record.result)
            except msgspec.DecodeError as error:
                raise CodecError(
                    f"The result of the item {self} is not of the type {self._type!r}: {error}."
                ) from error
        return Outcome(record.how, result, record.error, record.ended_at_us / 1e6)

    def _result_of(self, outcome: Outcome[R]) -> R:
        if outcome.state == "done":
            return cast(R, outcome.result)
        told = _TOLD.get(outcome.state, f"ended as {outcome.state!r}")
        error = f" Its last error: {outcome.error}" if outcome.error else ""
        raise CompletionError(
            f"The item {self} of {self._queue!r} {told}.{error}", outcome=outcome.state, error=outcome.error
        )
