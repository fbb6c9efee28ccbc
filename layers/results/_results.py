"""`Results`: enqueue items whose end can be waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast, overload

from fdbqueue import Position
from fdbqueue.base.position import check_position
from fdbqueue.base.typed import look_at
from fdbqueue.engine.verb import steps_of
from fdbqueue.lowlevel import (
    Database,
    Editing,
    Named,
    Notes,
    Transaction,
    is_database,
    new_random,
    only_database,
    pack,
    verb,
)
from fdbqueue.moves.outcomes import begin as begin_outcome

from ..common.composing import Enqueues, EnqueuesInSessions, QueueWithLeases, enqueues_in_transactions
from ..leases import FollowUp, Leases
from ..leases.done import check_follow_ups, follow_ups_of, position_in
from ..leases.marking import entered_at, mark, sessions_of
from ..leases.times import positive
from ._completion import Completion
from .ends import end_outcome

R = TypeVar("R")

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

    def __reduce__(self) -> tuple[Any, ...]:
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
        value: Any,
        *,
        then: FollowUp | Sequence[FollowUp] = (),
        keep: float | None = None,
        **terms: Any,
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
            begin_outcome(tr, home, at.address, marked.notes)
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
