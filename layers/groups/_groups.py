"""`Groups`: open groups in a queue, and enqueue members."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from fdbqueue import GroupError
from fdbqueue.engine.keys import behind
from fdbqueue.engine.verb import steps_of
from fdbqueue.lowlevel import (
    Database,
    Editing,
    KeyValue,
    Named,
    Subspace,
    Transaction,
    check_limit,
    is_database,
    new_random,
    only_database,
    only_transaction,
    run,
    run_async,
    started,
    verb,
)
from fdbqueue.moves.ends import GroupRecord, group_keys
from fdbqueue.stored.settings import check_renamed
from fdbqueue.stored.shapes import check_name

from ..common.composing import Enqueues, QueueWithLeases, enqueues_in_transactions
from ..leases import FollowUp, Leases
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
from .group import HOLD_SECONDS, Group, check_token, set_hold

KEEP_SECONDS = 86_400.0


class GroupList(Iterator["Group"]):
    """The groups of a queue, read one by one. Iterate by ``for``, or by ``async for`` in an event loop."""

    def __init__(
        self, groups: Groups, tr: Transaction | Database, db: Database | None, begin: bytes, limit: int | None
    ) -> None:
        self._groups = groups
        self._tr = tr
        self._db = db
        self._begin = begin
        self._left = math.inf if limit is None else limit
        self._named = False
        """Whether the queue's name is right, since a group was found."""

    def __next__(self) -> Group:
        group = run(self._next())
        if group is None:
            raise StopIteration
        return group

    def __aiter__(self) -> GroupList:
        return self

    async def __anext__(self) -> Group:
        group = await run_async(self._next())
        if group is None:
            raise StopAsyncIteration
        return group

    async def _next(self) -> Group | None:
        if self._left < 1:
            return None
        found = await self._groups.queue.read(self._tr, self._first)
        self._named = True
        if found is None:
            self._left = 0
            return None
        name: str = found[0][0]
        self._begin, self._left = _behind(self._groups.leases.layout.groups, name), self._left - 1
        return Group(self._groups, name, db=self._db)

    async def _first(self, tr: Transaction) -> tuple[tuple[Any, ...], KeyValue] | None:
        layout = self._groups.leases.layout
        found = await layout.first_own(tr.snapshot, "groups", self._begin, behind(layout.groups.key()))
        if found is None and not self._named:
            await check_renamed(tr.snapshot, layout)
        return found


class Groups(Named, QueueWithLeases[Any]):
    """The groups of one queue's items. Other layers take them in place of its leases.

    Args:
        source: the `Leases` of the queue, or a layer of them whose `enqueue` takes a transaction: a `PriorityQueue`, a
            `SmartQueue`, `Subscriptions`, `Results`; or `Sessions`.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, FollowUp, Groups, Leases
    >>> db = fdbqueue.open("memory:")
    >>> pages = Leases(fdbqueue.Queue("pages", codec="str"))
    >>> group = Groups(pages).open(db, "book", then=FollowUp(pages, "bind it"))
    >>> group.enqueue_many(db, ["page 1", "page 2"])
    2
    >>> group.close(db)
    >>> report = Consumer(pages, lambda lease: print(lease.value), concurrency=1).drain(db)
    page 1
    page 2
    bind it
    >>> group.wait(timeout=5).done
    2
    >>> db.close()
    """

    def __init__(self, source: Leases | Enqueues | EnqueuesInSessions) -> None:
        self.leases = enqueues_in_transactions(source, "Groups")
        inner: Any = source
        while inner is not None:
            if isinstance(inner, Groups):
                raise TypeError(f"An item is a member of one group at most: give Groups the source of {inner!r}.")
            inner = getattr(inner, "_source", None)
        self.sessions = sessions_of(source)
        self.queue = (self.sessions or self.leases).queue
        self._source: Any = source

    def __reduce__(self) -> tuple[object, ...]:
        return Groups, (self._source,)

    def __repr__(self) -> str:
        return f"Groups({self._source!r})"

    def editing(self) -> Editing[Any]:
        """Return the changes of items by their positions, as the source has them; for layers."""
        editing: Editing[Any] = self._source.editing()
        return editing

    @verb
    async def open(
        self,
        tr: Transaction | Database,
        name: str,
        *,
        then: FollowUp | Sequence[FollowUp] = (),
        hold: float = HOLD_SECONDS,
        keep: float = KEEP_SECONDS,
        token: bytes = b"",
    ) -> Group:
        """Begin a group, and return it. This producer holds it open until `Group.close`.

        Args:
            tr: a transaction, or a database.
            name: its name, of at most 100 bytes, which no other group of the queue has.
            then: items that become available when all members have ended, dead ones included. They are in their queues
                from now on, delayed.
            hold: seconds until the hold of this producer ends without `Group.close`. Enqueues of many items extend it.
            keep: how many seconds the group is kept after its end.
            token: the token of the hold; b"": a random one.

        Raises:
            GroupError: there is a group of this name already.
            ItemTooLarge: the follow-ups are too many. QueueRenamed: the queue has another name now. NestedQueue: as
                `Queue.pause`.

        *Conflicts:* with another call that opens a group of this name. *Cost:* two reads in parallel, three writes;
        that of an enqueue for each follow-up.
        """
        check_name(name, "group")
        check_token(token)
        follow_ups = follow_ups_of(then)
        check_follow_ups(follow_ups)
        hold_us, keep_s = positive(hold, "hold"), math.ceil(positive(keep, "keep") / 1e6)
        db: Any = tr if is_database(tr) else getattr(tr, "db", None)
        group = Group(self, name, token=token or new_random(), db=db)

        keys = group_keys(self.leases.layout, name)

        async def body(tr: Transaction) -> None:
            named = started(check_renamed(tr, self.leases.layout))
            if (found := await keys.read(tr)) is not None:
                raise GroupError(f"There is a group {name!r} in {self.queue!r} already. It is {found.state}.")
            await named
            held = []
            for follow_up in follow_ups:
                held += await follow_up.hold(tr)
            now_us = self.leases.now_us()
            record = GroupRecord(then=tuple(held), keep_s=keep_s, began_at_us=now_us)
            tr.set(keys.record, record.encode())
            set_hold(tr, self.leases.layout, name, group.token, now_us + hold_us)

        await self.queue.transact(tr, body)
        return group

    def group(self, db: Database, name: str) -> Group:
        """Return a group that was opened before, here or in another process. It reads nothing, and holds nothing.

        Args:
            db: a database.
            name: the group's name.
        """
        check_name(name, "group")
        only_database(db, "Groups.group", "Call it with the database, then Group.stats with your transaction.")
        return Group(self, name, db=db)

    def list(self, tr: Transaction | Database, *, after: str | None = None, limit: int | None = None) -> GroupList:
        """Iterate over the groups in the order of their names, lazily. They hold nothing.

        In an event loop, iterate by ``async for``.

        Args:
            tr: a transaction, or a database.
            after: begin with the first group behind this name.
            limit: the largest number of groups; None: all.

        Raises:
            QueueRenamed: there is none, and the queue has another name now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read for each group; it does not grow with the groups.
        """
        db: Any = tr if is_database(tr) else None
        space = self.leases.layout.groups
        if after is not None:
            check_name(after, "group")
        if limit is not None:
            check_limit(limit, "groups to list")
        return GroupList(self, tr, db, space.key() if after is None else _behind(space, after), limit)

    @verb
    async def enqueue(
        self, /, tr: Transaction | Database, value: object, *, group: Group | str, **terms: object
    ) -> Any:
        """Append an item as a member of a group. Return what the source's `enqueue` returns.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec encodes.
            group: the group, or its name.
            terms: the other arguments of the source's `enqueue`: delay, ttl, headers, priority ...

        Raises:
            GroupError: there is no such group, or it is done or cancelled; given a database, no key was touched.
            CodecError, ItemTooLarge, TypeError: as the source's `enqueue`.

        *Conflicts:* with the end or a cancel of the group. *Cost:* as the source's `enqueue`, one read and two writes.
        """
        name = group.name if isinstance(group, Group) else group
        check_name(name, "group")
        body = partial(self._enqueue, value=value, name=name, terms=terms)
        return await self.queue.transact(tr, body)

    async def check_open(self, tr: Transaction, name: str) -> None:
        """Raise unless members can be added to a group. For layers.

        Raises:
            GroupError: there is no such group, or it is done or cancelled.
        """
        only_transaction(tr, "Groups.check_open")
        check_name(name, "group")
        record = await group_keys(self.leases.layout, name).read(tr)
        if record is None or record.state != "open":
            raise self.refused(name, record)

    def refused(self, name: str, record: GroupRecord | None) -> GroupError:
        """Return the error of a group that takes no members. For layers."""
        if record is None:
            return GroupError(
                f"There is no group {name!r} in {self.queue.layout.describe()}; nothing was written. Open it first."
            )
        return GroupError(
            f"The group {name!r} in {self.queue.layout.describe()} is {record.state}; nothing was written."
        )

    async def _enqueue(self, tr: Transaction, value: object, name: str, terms: dict[str, Any]) -> Any:
        entering = steps_of(self._source.enqueue, tr, value, **terms)  # before the first read
        with closing(entering):
            await self.check_open(tr, name)
            entered = await entering
        position = position_in(entered)
        if position is not None:
            at = await entered_at(tr, self._source, self.queue.layout, position, terms.get("session"))
            delayed = bool(terms.get("delay") or terms.get("at"))
            marked = await mark(tr, at.layout, at.packed, delayed=delayed, group=name)
            if marked is not None:
                keys = group_keys(at.home, name)
                tr.set(keys.members + at.address, b"")
                keys.count(tr, **{marked.state: 1})
        return entered


def _behind(groups: Subspace, name: str) -> bytes:
    """Return the key behind all keys of a group, and in front of those of a name that goes on with a zero."""
    return behind(groups[name].key())
