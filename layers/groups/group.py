"""One group, and the timers that sweep a cancelled one, end holds, and remove ended ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs
from msgspec.structs import replace

from fdbqueue import CompletionError, FormatError
from fdbqueue.base.reprs import pairs
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import (
    Database,
    Layout,
    Named,
    Notes,
    Shown,
    Standing,
    Transaction,
    check_values,
    is_database,
    new_random,
    only_database,
    rows,
    value_of,
    verb,
)
from fdbqueue.moves.ends import GroupRecord, group_keys, pull
from fdbqueue.stored.places import InQueue, claimed_places
from fdbqueue.stored.settings import RenamePart
from fdbqueue.stored.shapes import Due, check_name

from ..common.waiting import NotEnded, long_wait, until_ended
from ..leases import Leases
from ..leases.lease import positive
from ..leases.timers import Firing, Reads, Timer, TimerKind
from ..leases.transitions import Release, Transitions

if TYPE_CHECKING:
    from ._groups import Groups


# Timers of groups: remove the waiting members of a cancelled group, end holds, and remove ended groups.

SWEEP_ITEMS = 100
"""How many members one transaction looks at. It reads them, and each may have 100,000 bytes."""


async def sweep(
    tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int, release: Release | None
) -> bool:
    """Remove some waiting members of a cancelled group, in the order of their positions. Return whether more are left.

    A member whose item is nowhere, as after the loss of a damaged item, leaves the group: it could not end any more. A
    cursor in the database says where the next transaction goes on, so that no number of members, and none at work,
    ends it too early.

    *Conflicts:* with a transaction that takes or moves one of these members. *Cost:* three reads, and two reads in
    parallel and a few writes for each member.
    """
    keys = group_keys(layout, name)
    cursor = await value_of(tr.get(keys.cursor))
    if not cursor.present():
        return False  # it came to its end
    stored = bytes(cursor)
    tr.clear(layout.timer_key(int.from_bytes(stored[:8], "big"), keys.timer_place, Due.SWEEP))
    begin = stored[8:]
    # By snapshot: each member that is removed is read with a conflict of its own.
    found = await rows(tr.snapshot, begin, behind(keys.members), limit=SWEEP_ITEMS)
    members = [row.key[len(keys.members) :] for _, row in layout.own_rows("groups", found)]
    if release is None:
        await _remove_waiting(tr, layout, moves, name, members)
    else:
        for packed in members:
            address = layout.available.position(layout.available.key(packed))
            if not await release(tr, moves, address, Due.SWEEP, now_us):
                _leave_group(tr, layout, moves, name, packed)
    if len(found) < SWEEP_ITEMS:
        tr.clear(keys.cursor)
        return False
    keys.begin_sweep(tr, now_us, found[-1].key + b"\x00")
    return True


async def _remove_waiting(tr: Transaction, layout: Layout, moves: Transitions, name: str, members: list[bytes]) -> None:
    """Remove the members that wait, also those that can't be read. Those at work run to their end."""
    states: tuple[InQueue, ...] = ("available", "delayed")
    reads = [(packed, state, tr.get(getattr(layout, state).key(packed))) for packed in members for state in states]
    waiting: dict[bytes, Standing] = {}
    for packed, state, read in reads:
        value = await value_of(read)
        if value.present():
            waiting[packed] = Standing(packed, state, bytes(value))
    known = await moves.read_notes({packed: one.stored for packed, one in waiting.items()})
    for packed, one in waiting.items():
        notes, is_readable = known[packed]
        notes = notes if is_readable else replace(notes, group=name)  # a key of the group has named it
        moves.leave(one.state, packed, notes)
        moves.vanish(packed, one.stored, "deleted", notes=notes, how="cancelled", is_readable=is_readable)
    rest = [packed for packed in members if packed not in waiting]
    for packed in await _nowhere(tr, layout, rest):
        _leave_group(tr, layout, moves, name, packed)


async def _nowhere(tr: Transaction, layout: Layout, members: list[bytes]) -> list[bytes]:
    """Return the members that do not wait, are not at work and are in no stream's batch."""
    # By snapshot: a member at work may be acked meanwhile. Only one that is not there is read with a conflict.
    reads = [(packed, tr.snapshot.get(layout.leased.key(packed))) for packed in members]
    gone = []
    for packed, read in reads:
        value = await value_of(read)
        if not value.present():
            tr.add_read_conflict_key(layout.leased.key(packed))
            gone.append(packed)
    for batch in await claimed_places(tr, layout) if gone else ():
        claims = [(packed, tr.get(batch.place.key(packed))) for packed in gone]
        gone = []
        for packed, read in claims:
            value = await value_of(read)
            gone += [] if value.present() else [packed]
    return gone


def _leave_group(tr: Transaction, layout: Layout, moves: Transitions, name: str, packed: bytes) -> None:
    """Note that a member is not open any more whose item is nowhere: an older version of the library left its key."""
    tr.clear(group_keys(layout, name).members + packed)
    moves.any = True
    moves.changed_groups |= {name}


async def _end_holds(tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int) -> None:
    holds = group_keys(layout, name).holds.range()
    # By snapshot, with a conflict for each that has expired: a producer may extend it at the same time.
    for row in await rows(tr.snapshot, holds.start, holds.stop):
        if int.from_bytes(row.value, "big") <= now_us:
            tr.add_read_conflict_key(row.key)
            tr.clear(row.key)
            moves.changed_groups |= {name}


async def _fire_sweep(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    firing.stale = True
    name = timer.position.random.decode()
    await sweep(firing.tr, firing.layout, firing.moves, name, firing.now_us, firing.retry.release)


async def _fire_hold(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    await _end_holds(firing.tr, firing.layout, firing.moves, timer.position.random.decode(), firing.now_us)


async def _forget_group(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    name = timer.position.random.decode()
    keys = group_keys(firing.layout, name)
    group = await keys.read(firing.tr)
    if group is not None and group.ended_at_us and group.ended_at_us + group.keep_s * 1_000_000 <= timer.at_us:
        firing.tr.clear_range(keys.begin, keys.end)


KINDS = {Due.SWEEP: TimerKind(_fire_sweep), Due.HOLD: TimerKind(_fire_hold), Due.GROUP: TimerKind(_forget_group)}
"""The kinds of timers of this layer; the place of such a timer has the group's name."""


# What the end of a group's member sets off. `fdbqueue.moves.ends` calls it.


def end_membership(tr: Transaction, layout: Layout, packed: bytes, notes: Notes, how: str, **told: object) -> None:
    """Note that a member is not open any more. The transaction settles its group afterwards."""
    if notes.group and how != "purged":  # a purged member ended when it died
        tr.clear(group_keys(layout, notes.group).members + packed)


RENAME_PART = RenamePart(
    "groups",
    lambda layout: layout.groups,
    "Wait until they have ended, or cancel them. An ended group is kept for a while.",
)
"""What a rename knows of groups."""


# `Group`: one group of items.

BATCH_ITEMS = 100
HOLD_SECONDS = 60.0
TOKEN_BYTES = 1_000
DAMAGED_KEEP_S = 86_400
"""How long a group is kept whose record could not be read: as by the default of `Groups.open`."""


@dataclass(frozen=True, slots=True, repr=False)
class GroupStats(Shown):
    """The members of a group by state, now or, once they have ended, in total."""

    state: str
    """"open", "done" or "cancelled". A cancelled group may still have members at work."""
    ended: bool
    """Whether all members have ended."""
    available: int
    """Members that the next takes will get."""
    leased: int
    """Members at work."""
    delayed: int
    """Members that wait for their time."""
    done: int
    """Members that were acked or dequeued."""
    dead: int
    """Members that became dead letters."""
    expired: int
    """Members whose time to live was over."""
    cancelled: int
    """Members that a cancel removed."""
    deleted: int
    """Members that were removed in other ways."""


MEMBER_STATES = tuple(field.name for field in fields(GroupStats) if field.name not in ("state", "ended"))
"""What has become of members, as `GroupStats` counts them."""


class Group(Named):
    """One group. `Groups.open` and `Groups.group` return it.

    Args:
        groups: the groups of the queue.
        name: the group's name.
        token: the token of the hold that this producer has; b"" for none.
        db: the database to wait in; None: `wait` needs one.
    """

    def __init__(self, groups: Groups, name: str, *, token: bytes = b"", db: Database | None = None) -> None:
        if not isinstance(getattr(groups, "leases", None), Leases):
            raise TypeError(f"A group is one of Groups, not of {groups!r}. Groups.open and Groups.group make groups.")
        check_name(name, "group")
        if token != b"":
            check_token(token)
        self._groups = groups
        self._leases = groups.leases
        self._layout = groups.leases.layout
        self._keys = group_keys(self._layout, name)
        self._db = db
        self.name = name
        """The group's name."""
        self.token = token
        """The token of the hold that this producer has; b"" for none."""

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Group, token=self.token), (self._groups, self.name)

    def __repr__(self) -> str:
        return f"Group({self._groups.queue.layout.describe()}, {self.name!r})"

    def _repr_html_(self) -> str:
        told = {"queue": self._groups.queue, "name": self.name, "holds": bool(self.token)}
        return pairs("Group", told)

    def at(self, db: Database) -> Group:
        """Return this group with the database to wait in; after it was unpickled, for instance."""
        only_database(db, "Group.at", "To look in a transaction use Group.stats(tr).")
        return Group(self._groups, self.name, token=self.token, db=db)

    @verb
    async def enqueue(self, /, tr: Transaction | Database, value: object, **terms: object) -> Any:
        """Append an item as a member; as `Groups.enqueue`."""
        return await self._groups.enqueue.steps(tr, value, group=self, **terms)

    @verb
    async def enqueue_many(self, /, tr: Transaction | Database, values: Iterable[object], **terms: object) -> int:
        """Append items as members, in their order. Return how many.

        Given a database, it uses transactions of 100 items. It holds the group open meanwhile, and extends the hold of
        this producer.

        Raises:
            GroupError: there is no such group, or it is done or cancelled. Items of earlier transactions are in.

        *Conflicts:* and *Cost:* as `enqueue`, for each item; one more write per transaction.
        """
        composed = not is_database(tr)
        check_values(values)
        if composed:
            return await self._append(cast(Transaction, tr), list(values), terms, token=b"", last=False)
        # A hold of its own: else the group could be done between two of its transactions.
        token = self.token or new_random()
        added, following = 0, iter(values)
        batch = list(islice(following, BATCH_ITEMS))
        while batch:
            rest = list(islice(following, BATCH_ITEMS))
            body = partial(self._append, values=batch, terms=terms, token=token, last=not rest and not self.token)
            added += await self._leases.queue.transact(tr, body)
            batch = rest
        return added

    @verb
    async def hold(self, tr: Transaction | Database, *, duration: float = HOLD_SECONDS, token: bytes = b"") -> Group:
        """Hold the group open: it is not done while a producer holds it. Return it with the token of the hold.

        Args:
            tr: a transaction, or a database.
            duration: seconds until the hold ends without `close`.
            token: a hold to extend; b"": this group's hold if it has one, else a new one.

        Raises:
            GroupError: there is no such group, or it is done or cancelled.
            TypeError: the token is not bytes. ValueError: it is over 1,000 bytes.

        *Conflicts:* with the end or a cancel of the group. *Cost:* one read, two writes.
        """
        check_token(token)
        until_us = self._leases.now_us() + positive(duration, "duration")
        held = token or self.token or new_random()

        async def body(tr: Transaction) -> None:
            await self._groups.check_open(tr, self.name)
            set_hold(tr, self._layout, self.name, held, until_us)

        await self._leases.queue.transact(tr, body)
        return Group(self._groups, self.name, token=held, db=self._db)

    @verb
    async def close(self, tr: Transaction | Database) -> None:
        """End this producer's hold: it adds no more members. A group without open members is done then.

        Raises:
            ValueError: this producer has no hold.

        *Conflicts:* as the end of a member. *Cost:* two reads in parallel, one write.
        """
        if not self.token:
            raise ValueError(f"{self!r} is not held by this object. `Groups.open` and `Group.hold` return one that is.")

        async def body(tr: Transaction) -> None:
            tr.clear(self._keys.holds.pack((self.token,)))
            await self._keys.settle(tr, self._leases.now_us())

        await self._leases.queue.transact(tr, body)

    @verb
    async def cancel(self, tr: Transaction | Database) -> GroupStats:
        """Cancel the group: no member is taken or added from now on. Return its stats.

        Members at work run to their end. Given a database, this call then removes the waiting members, in many
        transactions if needed. In a transaction, the consumers of the queue remove them later. The group's follow-ups
        are removed. A record that can't be read is written again as that of a cancelled group; its follow-ups stay
        held.

        Raises:
            GroupError: there is no such group, or it is done.

        *Conflicts:* with takes of its members and enqueues into it at this moment. *Cost:* three reads and four writes;
        given a database, also about five reads and writes for each waiting member.
        """
        stats = await self._leases.queue.transact(tr, self._cancel)
        more = is_database(tr)
        while more:
            # The group may have been removed after its time, by another process. Then the last look at it counts.
            more, seen = await self._leases.queue.transact(tr, self._sweep)
            stats = seen or stats
        return stats

    @verb
    async def stats(self, tr: Transaction | Database) -> GroupStats:
        """Return the number of members by state.

        Raises:
            CompletionError: there is no such group, or it was removed after its time; its `outcome` is "gone".

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads; it does not grow with the group.
        """
        return await self._leases.queue.read(tr, self._look)

    @verb
    async def wait(self, timeout: float | None = None) -> GroupStats:
        """Wait until all members have ended and no producer holds the group, and return its stats.

        ``await group`` does the same.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            CompletionError: the group was cancelled, once its members at work have ended; or there is none.
            TimeoutError: the time is over. The group is not affected.
            ValueError: the group has no database to wait in; `at` gives it one.

        *Conflicts:* none. *Cost:* three reads and a watch: once, in general.
        """
        if self._db is None:
            raise ValueError(f"{self!r} has no database to wait in. Give it one: group.at(db).wait().")
        if timeout != 0:
            await long_wait("Group.wait")
        name = f"The group {self.name!r} of {self._groups.queue!r}"
        stats = await until_ended(self._db, self._leases, self._look_for_end, timeout, name)
        if stats.state != "done":
            raise CompletionError(f"{name} was cancelled: {stats}.", outcome=stats.state)
        return stats

    def __await__(self) -> Any:
        return self.wait.aio().__await__()

    async def _append(self, tr: Transaction, values: list[Any], terms: dict[str, Any], token: bytes, last: bool) -> int:
        for value in values:
            await self._groups.enqueue.steps(tr, value, group=self, **terms)
        if last:
            tr.clear(self._keys.holds.pack((token,)))
        elif token:
            set_hold(tr, self._layout, self.name, token, self._leases.now_us() + int(HOLD_SECONDS * 1e6))
        return len(values)

    async def _cancel(self, tr: Transaction) -> GroupStats:
        value = await value_of(tr.get(self._keys.record))
        try:
            group = self._keys.decode(bytes(value)) if value.present() else None
        except FormatError:  # this call is the way out that its message names
            group = GroupRecord(keep_s=DAMAGED_KEEP_S)
        if group is None or group.state == "done":
            raise self._groups.refused(self.name, group)
        if group.state != "cancelled":
            tr.set(self._keys.record, structs.replace(group, state="cancelled", then=()).encode())
            pull(tr, group.then, Due.DROP)
            span = self._keys.holds.range()
            tr.clear_range(span.start, span.stop)
            self._keys.begin_sweep(tr, self._leases.now_us())
            await self._keys.settle(tr, self._leases.now_us())
        return await self._look(tr)

    async def _sweep(self, tr: Transaction) -> tuple[bool, GroupStats | None]:
        moves = Transitions(tr, self._layout, self._leases.now_us())
        more = await sweep(tr, self._layout, moves, self.name, self._leases.now_us(), self._leases.retry.release)
        await moves.settle()
        moves.finish()
        if more or not (await value_of(tr.snapshot.get(self._keys.record))).present():
            return more, None
        return False, await self._look(tr)

    async def _look(self, tr: Transaction) -> GroupStats:
        value = await value_of(tr.snapshot.get(self._keys.record))
        if not value.present():
            raise CompletionError(
                f"Nothing is known of the group {self.name!r} of {self._groups.queue!r}: it was not opened, it was kept"
                " for its time and then removed, or the queue was cleared.",
                outcome="gone",
            )
        group = self._keys.decode(bytes(value))
        counts = await self._keys.read_counts(tr)
        members = {state: counts.get(state, 0) for state in MEMBER_STATES}
        return GroupStats(state=group.state, ended=bool(group.ended_at_us), **members)

    async def _look_for_end(self, tr: Transaction) -> GroupStats | NotEnded:
        stats = await self._look(tr)
        if stats.ended:
            return stats
        span = self._keys.holds.range()
        holds = await rows(tr.snapshot, span.start, span.stop)
        due_us = min((int.from_bytes(row.value, "big") for row in holds), default=0)
        if stats.state == "cancelled":
            cursor = await value_of(tr.snapshot.get(self._keys.cursor))
            due_us = int.from_bytes(bytes(cursor)[:8], "big") if cursor.present() else 0
        return NotEnded(self._keys.record, due_us)


def set_hold(tr: Transaction, layout: Layout, name: str, token: bytes, until_us: int) -> None:
    """Write a hold of a group, and the timer of its end."""
    keys = group_keys(layout, name)
    tr.set(keys.holds.pack((token,)), until_us.to_bytes(8, "big"))
    tr.set(layout.timer_key(until_us, keys.timer_place, Due.HOLD), b"")


def check_token(token: object) -> None:
    """Refuse what is no token of a hold.

    Raises:
        TypeError: it is not bytes. ValueError: it is too long for a key.
    """
    if not isinstance(token, bytes):
        raise TypeError(f"The token of a hold is bytes, as `Group.token`, not {token!r}.")
    if len(token) > TOKEN_BYTES:
        raise ValueError(
            f"The token of a hold has at most {TOKEN_BYTES:,} bytes, not {len(token):,}: {token[:20]!r}… Give a hash of"
            " it, or none: a new one is made."
        )
