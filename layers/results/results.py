"""`Results`: enqueue items whose end can be waited for, `Completion`: the end of one item, and what it sets off."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import msgspec

from fdbqueue import CodecError, CompletionError, FormatError, Position
from fdbqueue.base.position import check_position
from fdbqueue.base.reprs import pairs
from fdbqueue.base.times import HELD_US
from fdbqueue.base.typed import decoder, look_at
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.engine.verb import steps_of
from fdbqueue.lowlevel import (
    Database,
    Editing,
    Layout,
    Named,
    Notes,
    Shown,
    Steps,
    Transaction,
    count,
    is_database,
    new_random,
    only_database,
    pack,
    value_of,
    verb,
)
from fdbqueue.moves.ends import OutcomeRecord, pull
from fdbqueue.stored.shapes import Due

from ..common.composing import Enqueues, QueueWithLeases, enqueues_in_transactions
from ..common.waiting import NotEnded, long_wait, until_ended
from ..leases import Disposition, FollowUp, Leases
from ..leases.done import (
    EnqueuesInSessions,
    check_follow_ups,
    entered_at,
    follow_ups_of,
    mark,
    position_in,
    sessions_of,
)
from ..leases.lease import positive
from ..leases.timers import Firing, Reads, Timer, TimerKind, come_back
from ..leases.transitions import Transitions

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

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
        self, queue_leases: Leases, position: Position, *, type: object = Any, db: Database | None = None
    ) -> None:
        if not isinstance(queue_leases, Leases):
            raise TypeError(
                f"A completion needs the Leases of its queue, not {queue_leases!r}. Results make completions."
            )
        if not isinstance(position, Position):
            raise TypeError(f"A completion is that of an item, by its Position, not by {position!r}.")
        self._leases = queue_leases
        self._queue = queue_leases.shown
        self._type = type
        self._db = db
        self.position = position
        """The item; the address of an item in a session."""

    def __reduce__(self) -> tuple[object, ...]:
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
        expire = None if self._leases.retry.release is None else self._expire
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

        async def body(tr: Transaction) -> None:
            now_us = self._leases.now_us()
            moves = Transitions(tr, self._leases.layout, now_us)
            if (release := self._leases.retry.release) is not None:
                await release(tr, moves, self.position, Due.TTL, now_us)
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
        record = OutcomeRecord.read(layout, key, bytes(value))
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


KEEP_SECONDS = 3_600.0


class Results(Named, QueueWithLeases[Any], Generic[R]):
    """Enqueues items whose results can be waited for.

    The results are those of a `Consumer`'s handlers: it stores what a handler returns. Without a consumer, give the
    result to `Leases.ack`. Other layers take `Results` in place of its leases.

    Args:
        source: the `Leases` of the queue, or a layer of them whose `enqueue` takes a transaction: a `PriorityQueue`, a
            `SmartQueue`, `Subscriptions`; or `Sessions`.
        type: the type of the results, if it is not what MessagePack gives: a dataclass, a Struct, ``list[int]``.
        keep: how many seconds an outcome is kept after the item's end.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases, Results
    >>> db = fdbqueue.open("memory:")
    >>> squares = Results(Leases(fdbqueue.Queue("squares", codec="json")), type=int)
    >>> completion = squares.enqueue(db, 7)
    >>> report = Consumer(squares, lambda lease: lease.value ** 2).drain(db)
    >>> completion.wait()
    49
    >>> squares.completion(db, str(completion)).wait(timeout=5)
    49
    >>> db.close()
    """

    @overload
    def __init__(
        self: Results[Any],
        source: Leases | Enqueues | EnqueuesInSessions,
        *,
        type: None = None,
        keep: float = KEEP_SECONDS,
    ) -> None: ...
    @overload
    def __init__(
        self, source: Leases | Enqueues | EnqueuesInSessions, *, type: type[R], keep: float = KEEP_SECONDS
    ) -> None: ...
    def __init__(
        self,
        source: Leases | Enqueues | EnqueuesInSessions,
        *,
        type: type[R] | None = None,
        keep: float = KEEP_SECONDS,
    ) -> None:
        self.leases = enqueues_in_transactions(source, "Results")
        self.sessions = sessions_of(source)
        self.queue = (self.sessions or self.leases).queue
        self._source: Any = source
        self._type: Any = Any if type is None else type
        try:
            look_at(self._type)
        except TypeError as error:
            raise TypeError(f"type is the type of the results, as dict or Order, not {type!r}: {error}.") from error
        self._keep = keep
        self._keep_s = _whole_seconds(keep)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Results, type=None if self._type is Any else self._type, keep=self._keep), (self._source,)

    def __repr__(self) -> str:
        return f"Results({self._source!r})"

    def editing(self) -> Editing[Any]:
        """Return the changes of items by their positions, as the source has them; for layers."""
        editing: Editing[Any] = self._source.editing()
        return editing

    @verb
    async def enqueue(
        self,
        /,
        tr: Transaction | Database,
        value: object,
        *,
        then: FollowUp | Sequence[FollowUp] = (),
        keep: float | None = None,
        **terms: object,
    ) -> Completion[R]:
        """Append an item, and return its completion.

        If a smart queue decides that a queued item replaces it, the completion is that item's.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec encodes.
            then: items that become available when this one is acked. They are in their queues from now on, delayed.
            keep: how many seconds its outcome is kept; None: as this object says.
            terms: the other arguments of the source's `enqueue`: delay, ttl, headers, priority ...

        Raises:
            CodecError, ItemTooLarge: as the source's `enqueue`, and if the follow-ups are too many; no key was touched.
            TypeError: the source's `enqueue` has no such argument.

        *Conflicts:* as the source's `enqueue`. *Cost:* as the source's, and one write more; that of an enqueue for each
        follow-up.
        """
        keep_s = self._keep_s if keep is None else _whole_seconds(keep)
        follow_ups = follow_ups_of(then)
        check_follow_ups(follow_ups)
        layout, home = self.queue.layout, self.leases.layout
        db = cast(Database, tr) if is_database(tr) else getattr(tr, "db", None)

        async def body(tr: Transaction) -> Position:
            entered = await steps_of(self._source.enqueue, tr, value, **terms)
            position = position_in(entered) or getattr(entered, "by", None)
            delayed = bool(terms.get("delay") or terms.get("at"))
            at = marked = None
            if position is not None:
                at = await entered_at(tr, self._source, layout, position, terms.get("session"))
                marked = await mark(tr, at.layout, at.packed, delayed=delayed, keep_s=keep_s)
            if at is None or marked is None:
                position = Position(1, new_random())
                ignored = Notes(keep_s=keep_s)
                end_outcome(tr, home, pack(position), ignored, "ignored", now_us=self.leases.now_us())
                return position
            OutcomeRecord.begin(tr, home, at.address, marked.notes)
            held = []
            for follow_up in follow_ups:
                held += await follow_up.hold(tr)
            if held:
                await mark(tr, at.layout, at.packed, delayed=delayed, then=(*marked.notes.then, *held))
            return at.name

        position = await self.queue.transact(tr, body)
        return Completion(self.leases, position, type=self._type, db=db)

    def completion(self, db: Database, item: str | Position) -> Completion[R]:
        """Return the completion of an item that was enqueued before, here or in another process. It reads nothing.

        Args:
            db: a database.
            item: the text of the completion, ``str(completion)``, or the item's position.

        Raises:
            ValueError: the text is no position.
        """
        if not isinstance(item, str | Position):
            raise TypeError(f"An item is named by the text of its completion, or its Position, not by {item!r}.")
        position = Position.parse(item) if isinstance(item, str) else item
        check_position(position)
        if self.sessions is not None and position.rank is not None:
            raise TypeError(
                f"{position.text} does not say in which session the item is: give the text of its completion,"
                " str(completion)."
            )
        only_database(db, "Results.completion", "Call it with the database, then Completion.outcome with yours.")
        return Completion[R](self.leases, position, type=self._type, db=db)


def _whole_seconds(keep: float) -> int:
    return math.ceil(positive(keep, "keep") / 1e6)


# What an item's end sets off: its outcome, and its follow-ups. `fdbqueue.moves.ends` calls it.


def end_outcome(
    tr: Transaction,
    layout: Layout,
    packed: bytes,
    notes: Notes,
    how: str,
    *,
    result: bytes = b"",
    error: str = "",
    now_us: int | None = None,
) -> None:
    """Write the outcome of an item that leaves the queue or dies, and release or drop its follow-ups. All blind writes.

    Args:
        how: how it ends.
        result: its encoded result, if it is done.
        error: why it ends, if it is not.
        now_us: the time in microseconds; None: the wall clock.
    """
    at_us = time.time_ns() // 1_000 if now_us is None else now_us
    if notes.keep_s and how != "purged":  # a purged item ended when it died
        until_us = at_us + notes.keep_s * 1_000_000
        record = OutcomeRecord(how=how, result=result, error=error, ended_at_us=at_us, until_us=until_us)
        tr.set(layout.completions.key(packed), record.encode())
        tr.set(layout.timer_key(until_us, packed, Due.RESULT), b"")
        count(tr, layout, outcomes=1)
    if how != "dead":  # the follow-ups of a dead letter wait until it is redriven or purged
        pull(tr, notes.then, Due.GO if how == "done" else Due.DROP)


async def _forget_outcome(firing: Firing, timer: Timer, reads: Reads) -> None:
    # Without a read: an item that comes back clears its timer, and conflicts with this transaction.
    firing.tr.add_read_conflict_key(timer.key)
    OutcomeRecord.remove(firing.tr, firing.layout, timer.packed, timer.at_us)
    firing.moves.any = True


async def _fire_follow_up(firing: Firing, timer: Timer, reads: Reads) -> None:
    """Release a follow-up, or drop it."""
    if (release := firing.retry.release) is not None:
        with suppress(FormatError):  # left to the newer version that wrote the follow-up
            await release(firing.tr, firing.moves, timer.position, timer.kind, firing.now_us)
            firing.clear(timer)
            firing.stale = True
        return
    found = await firing.find(timer, reads, lambda notes: notes.held)
    if found is None:
        return
    firing.clear(timer)
    if timer.kind == Due.GO:
        come_back(firing, timer, found, delay_us=found.notes.visible_at_us - HELD_US)
        return
    firing.moves.leave_delayed(timer.packed, found.notes)
    firing.moves.vanish(timer.packed, found.stored, "deleted")
    firing.moved(timer, found, Disposition.deleted)


KINDS = {
    Due.RESULT: TimerKind(_forget_outcome),
    Due.GO: TimerKind(_fire_follow_up, ("delayed",)),
    Due.DROP: TimerKind(_fire_follow_up, ("delayed",)),
}
"""The kinds of timers of this layer."""
